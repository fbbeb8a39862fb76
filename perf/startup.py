"""How long `layermark --help` takes, against starting Python at all. The goal is 0.3 s on an ordinary machine."""

import statistics
import subprocess
import sys
import time

GOAL_S = 0.3


def seconds(*command):
    """Wall time of one command."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main():
    """Alternate the two and print medians and their ratio."""
    seconds(sys.executable, "-m", "layermark", "--help")
    ours, bare = [], []
    for _ in range(15):
        ours.append(seconds(sys.executable, "-m", "layermark", "--help"))
        bare.append(seconds(sys.executable, "-c", "pass"))
    median = statistics.median(ours)
    print(f"layermark --help: {median:.3f} s, python alone {statistics.median(bare):.3f} s; goal {GOAL_S} s")
    return int(median > GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
