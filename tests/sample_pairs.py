"""Examples of an input and its target for tests/pair_tasks.py."""

from pathlib import Path


def write_pairs(folder: Path) -> Path:
    """Files for tests/pair_tasks.py: a letter, and how often it is asked for."""
    folder.mkdir()
    for split, count in (("train", 200), ("validation", 30)):
        for file in range(2):
            lines = [
                f"{n}\t{'abcdef'[n % 6]} x{n % 4 + 1}:\t{'abcdef'[n % 6] * (n % 4 + 1)}|never"
                for n in range(file, count, 2)
            ]
            (folder / f"{split}-{file}.txt").write_text("\n".join(lines) + "\n")
    return folder
