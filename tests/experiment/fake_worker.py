"""Stands in for `logicdiag experiment work`: no training, but the same files, signals and exit codes. psi.q says what:
1 is done at once, 2 fails, 3 goes on until it is asked to stop, 4 is killed, 5 is done when the others have begun,
6 fails if another is in the same run.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(job) -> None:
    with open(job["log"], "ab") as log:
        os.dup2(log.fileno(), 2)
    run, what = Path(job["run"]), job["config"]["psi"]["q"]
    steps = job["config"]["train"]["steps"]
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").touch()
    with open(run.parent.parent / "begun.txt", "a") as file:
        file.write(f"{run.name}\n")
    with open(run.parent.parent / "processes.txt", "a") as file:
        file.write(f"{os.getpid()}\n")

    def log(step):
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": step}) + "\n")

    def done():
        found = {"miou": 0.5, "images": 1, "list": {"fingerprint": "x"}}
        file = run / "result.json"
        known = json.loads(file.read_text())["evaluated"] if file.is_file() else {}
        evaluated = {**known, job["split"] or "val": {"last": found}}
        file.write_text(json.dumps({"dataset": job["dataset"], "trained": True, "evaluated": evaluated}))

    if what == 1:
        log(steps)
        done()
    elif what == 2:
        sys.stderr.write("something before\nlogicdiag: the soup is cold\n\n")
        sys.exit(2)
    elif what == 3:

        def stop(number, frame):
            log(3)
            (run / "saved.txt").write_text("saved")
            sys.exit(130)

        signal.signal(signal.SIGINT, stop)
        log(2)
        while True:
            time.sleep(0.02)
    elif what == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == 5:
        begun = run.parent.parent / "begun.txt"
        while len(begun.read_text().splitlines()) < 3:
            time.sleep(0.02)
        done()
    elif what == 6:
        (run / "busy").touch(exist_ok=False)
        time.sleep(0.5)
        (run / "busy").unlink()
        done()


if __name__ == "__main__":
    for line in sys.stdin:
        main(json.loads(line))
        os.write(1, b"done\n")
