"""From tasks to scored groups: rollouts run beside the trainer."""
