import os

SIZES = {
    "a/report.pdf": 70123, "a/b/data.bin": 91007, "a/b/old data.bin": 91008, "c/.cache": 120001,
    "c/movie.part": 64000, "c/d/e/deep.log": 80500, "readme": 120, "c/empty": 0, "a/list.csv": 9000,
}
for path, size in SIZES.items():
    path = os.path.join("/app/store", path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"x" * size)
os.symlink("c/.cache", "/app/store/newest")
