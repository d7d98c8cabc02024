#!/usr/bin/env python3
"""Logs of train_gpt (log.jsonl) and of llm.c (main.log) for TensorBoard (pip install tensorboard).

  to_tensorboard.py LOG... [--out runs]         then: tensorboard --logdir runs

Every number of a record becomes a scalar: loss, val_loss, lr, grad_norm, tok_per_s and so on. Each
LOG is a run of its own in the folder --out, named after its folder.
"""
import argparse, os, sys
from plot import read_log


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("logs", metavar="LOG", nargs="+")
    p.add_argument("--out", default="runs", metavar="FOLDER")
    a = p.parse_args()
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        sys.exit("error: no tensorboard; install it: pip install tensorboard")
    for path in a.logs:
        folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
        run = os.path.join(a.out, os.path.basename(os.path.abspath(folder)))
        if os.path.exists(run):     # TensorBoard would show both, mixed
            sys.exit(f"error: {run} exists; remove it, or give another --out")
        records = read_log(path)    # first: a log that cannot be read leaves no folder
        writer = EventFileWriter(run)
        for step, values in sorted(records.items()):
            summary = Summary(value=[Summary.Value(tag=k, simple_value=v)
                                     for k, v in values.items()])
            writer.add_event(Event(step=step, summary=summary, wall_time=os.path.getmtime(path)))
        writer.close()
        print(f"{run}: {len(records)} steps")


if __name__ == "__main__":
    main()
