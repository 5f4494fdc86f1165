"""`plot`: curve.csv of a run as a picture: loss and accuracy over CPU time, acceptance length on the held-out part."""
from __future__ import annotations

import csv
import os

from .errors import TrainError


def plot_curve(run: str, out: str) -> None:
    """Two panels; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    file = os.path.join(run, "curve.csv")
    try:
        with open(file, encoding="utf-8") as f:
            rows = list(csv.DictReader(f))
    except OSError as e:
        raise TrainError(f"{file}: {e}") from e
    series = lambda key: ([float(r["cpu"]) / 60 for r in rows if r[key]], [float(r[key]) for r in rows if r[key]])
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    left.plot(*series("loss"), color="black", linewidth=1)
    left.set(xlabel="CPU minutes", ylabel="training loss")
    for k in range(1, 5):
        right.plot(*series(f"acc{k}"), linewidth=1, label=f"position {k}")
    right.set(xlabel="CPU minutes", ylabel="training accuracy", ylim=(0, None))
    tau = right.twinx()
    tau.plot(*series("tau"), "k.-", label="tau")
    tau.set_ylabel("acceptance length, held-out")
    right.legend(fontsize="small", loc="lower right")
    try:
        figure.savefig(out, dpi=110)
    except OSError as e:
        raise TrainError(f"{out}: {e}") from e
