"""The training loop of MinT's documents, run with a real client against a server of the Tinker API.

    python seed_loop.py mint|tinker BASE_URL BASE_MODEL [steps] [train_unembed 0|1]

GRPO on a task of one turn that a small model learns in a few steps: the answer is to be made of
digits. Prints the mean reward of each step; exits 0 if the mean of the last three steps is 0.25
above the first step's, and every call answered with what the API promises: lengths,
log-probabilities, a tokenizer, a new sampler per step.
"""

from __future__ import annotations

import os
import sys
import time

sdk, url, base_model = sys.argv[1:4]
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 12
unembed = bool(int(sys.argv[5])) if len(sys.argv) > 5 else True
os.environ.setdefault("TINKER_API_KEY", "tml-local")
os.environ.setdefault("MINT_API_KEY", "sk-mint-local")
os.environ |= {"TINKER_BASE_URL": url, "MINT_BASE_URL": url}
if sdk == "mint":
    import mint as api
    from mint import types
else:
    import tinker as api
    from tinker import types

begun = time.perf_counter()
service = api.ServiceClient(base_url=url)
client = service.create_lora_training_client(
    base_model=base_model, rank=16, train_mlp=True, train_attn=True, train_unembed=unembed
)
tokenizer = client.get_tokenizer()
rate = float(os.environ.get("LR", "3e-3"))
adam = types.AdamParams(learning_rate=rate, beta1=0.9, beta2=0.95, eps=1e-8)
prompt = tokenizer.encode("Q: What is 3 + 5?\nA:")
G, P = 16, 4
means = []
for step in range(steps):
    sampler = client.save_weights_and_get_sampling_client(name=f"rl-step-{step}")
    futures = [
        sampler.sample(
            prompt=types.ModelInput.from_ints(tokens=prompt),
            num_samples=G,
            sampling_params=types.SamplingParams(
                max_tokens=16, temperature=0.8, seed=1000 * step + p
            ),
        )
        for p in range(P)
    ]
    datums, rewards = [], []
    for future in futures:
        group = future.result().sequences
        assert len(group) == G, len(group)
        scores = []
        for seq in group:
            text = tokenizer.decode(seq.tokens)
            assert len(seq.tokens) <= 16
            assert seq.logprobs is not None
            assert len(seq.logprobs) == len(seq.tokens)
            assert all(x <= 1e-6 for x in seq.logprobs)
            scores.append(sum(c.isdigit() for c in text) / max(1, len(text)))
        mean = sum(scores) / len(scores)
        rewards += scores
        for seq, r in zip(group, scores, strict=True):
            if not seq.tokens:
                continue
            full, lead = prompt + list(seq.tokens), len(prompt) - 1
            datums.append(
                types.Datum(
                    model_input=types.ModelInput.from_ints(tokens=full[:-1]),
                    loss_fn_inputs={
                        "target_tokens": full[1:],
                        "logprobs": [0.0] * lead + list(seq.logprobs),
                        "advantages": [0.0] * lead + [r - mean] * len(seq.tokens),
                    },
                )
            )
    done = client.forward_backward(datums, loss_fn="importance_sampling")
    opt = client.optim_step(adam)
    out = done.result()
    opt.result()
    assert len(out.loss_fn_outputs) == len(datums)
    lp = out.loss_fn_outputs[0]["logprobs"].to_numpy()
    assert len(lp) == len(datums[0].model_input.to_ints())
    means.append(sum(rewards) / len(rewards))
    seconds = time.perf_counter() - begun
    print(f"step {step}: reward {means[-1]:.3f}, {seconds:.1f} s", flush=True)
last = sum(means[-3:]) / 3
print(f"{means[0]:.3f} -> {last:.3f} in {steps} steps, {time.perf_counter() - begun:.1f} s")
sys.exit(not (last > means[0] + 0.25))
