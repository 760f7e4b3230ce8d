"""Lower bounds on the makespan of tasks with precedence on some devices, where what travels takes time.

Three relaxations, each of which every run obeys:

- **Earliest starts** of tasks whose device is free, after Papadimitriou and Yannakakis, "Towards an
  Architecture-Independent Analysis of Parallel Algorithms" (SIAM J. Comput. 1990): an ancestor that does not run on a
  task's own device is ready for it only after a transfer; those that would be too late run there, one after the other.
  It holds even if tasks may be computed twice.
- **Tails**, the same from the end: how long after a task ends everything takes at least.
- **Shares**: of any set of tasks, the earliest start, the work over the devices that may do it, and the shortest tail
  add up.

Links carry any number of transfers at a time here, except where devices are fixed: then each lane is a device too.
Shape legend: N tasks in topological order, E dependencies, D devices.
"""

from typing import Any, NamedTuple

import numpy as np

from graphopt.core.graph import F64, I64
from graphopt.utils.compiled import njit

WINDOW = 96  # ancestors that are looked at for each task, the nearest
THRESHOLDS = 512  # earliest starts from which sets of tasks are looked at


class Tasks(NamedTuple):
    """seconds: at least. travel: seconds from a task to its reader where these are on different devices, at least."""

    seconds: F64  # [N]
    ptr: I64  # [N+1] dependencies of a task
    source: Any  # int32 [E] who makes what is read
    travel: F64  # [E]


def backwards(tasks: Tasks) -> Tasks:
    """The same with time reversed: task N-1 becomes task 0, readers become makers."""
    count = len(tasks.seconds)
    reader = np.repeat(np.arange(count), np.diff(tasks.ptr))
    order = np.argsort(count - 1 - tasks.source.astype(np.int64), kind="stable")
    sizes = np.bincount(count - 1 - tasks.source.astype(np.int64), minlength=count)
    ptr = np.append(0, np.cumsum(sizes)).astype(np.int64)
    source = (count - 1 - reader[order]).astype(np.int32)
    return Tasks(tasks.seconds[::-1].copy(), ptr, source, tasks.travel[order])


def free_bound(tasks: Tasks, devices: int) -> float:
    """Seconds that no run takes less than, on so many devices of which every task may choose one."""
    start, tail = free_starts(tasks), free_starts(backwards(tasks))[::-1]
    path = float((start + tasks.seconds + tail).max(initial=0.0))
    return max(path, shares_bound(start, tasks.seconds, tail, devices))


def free_starts(tasks: Tasks) -> F64:
    """[N] earliest starts of tasks that choose their device."""
    found: F64 = _free_starts(*tasks, WINDOW)
    return found


def fixed_bound(tasks: Tasks, device: I64, lane: I64) -> float:
    """The same where the device of every task [N] is fixed. lane: [E] the lane that a transfer takes, -1 where nothing
    travels or where lanes carry any number of transfers at a time."""
    travels = device[tasks.source] != np.repeat(device, np.diff(tasks.ptr))
    pays = tasks._replace(travel=np.where(travels, tasks.travel, 0.0))
    start, tail = _path_starts(*pays), _path_starts(*backwards(pays))[::-1]
    bound = float((start + tasks.seconds + tail).max(initial=0.0))
    for here in np.unique(device):
        mine = device == here
        bound = max(bound, shares_bound(start[mine], tasks.seconds[mine], tail[mine], 1))
    reader = np.repeat(np.arange(len(device)), np.diff(tasks.ptr))
    for one in np.unique(lane[lane >= 0]):
        mine = lane == one
        maker, after = tasks.source[mine], reader[mine]
        ready, rest = start[maker] + tasks.seconds[maker], tail[after] + tasks.seconds[after]
        bound = max(bound, shares_bound(ready, tasks.travel[mine], rest, 1))
    return bound


def shares_bound(start: F64, seconds: F64, tail: F64, devices: int) -> float:
    """The most that earliest start, work over devices and shortest tail of any set of tasks add up to, of the sets of
    all tasks with a start and a tail of at least some values."""
    works = seconds > 0
    order = np.argsort(-tail[works], kind="stable")
    start, seconds, tail = start[works][order], seconds[works][order], tail[works][order]
    least = np.unique(start)
    picked = least[np.unique(np.linspace(0, len(least) - 1, min(len(least), THRESHOLDS)).astype(int))]
    return float(_shares_bound(start, seconds, tail, picked, devices))


@njit(cache=True, nogil=True)
def _shares_bound(start, seconds, tail, least, devices):  # type: ignore[no-untyped-def]
    most = 0.0
    for a in least:
        work, first = 0.0, np.inf
        for i in range(len(start)):
            if start[i] >= a:
                work += seconds[i]
                first = min(first, start[i])
                most = max(most, first + work / devices + tail[i])
    return most


@njit(cache=True, nogil=True)
def _path_starts(seconds, ptr, source, travel):  # type: ignore[no-untyped-def]
    start = np.zeros(len(seconds))
    for n in range(len(seconds)):
        for e in range(ptr[n], ptr[n + 1]):
            start[n] = max(start[n], start[source[e]] + seconds[source[e]] + travel[e])
    return start


@njit(cache=True, nogil=True)
def _free_starts(seconds, ptr, source, travel, window):  # type: ignore[no-untyped-def]
    count = len(seconds)
    start, near = np.zeros(count), np.empty(window, np.int64)
    rest, least, seen = np.zeros(count), np.zeros(count), np.full(count, -1, np.int64)
    late, end = np.empty(window), np.empty(window)
    for n in range(count):
        # the nearest ancestors, breadth first; of one path from each: its work, and its shortest transfer
        found, step = 0, -1
        while step < found:
            here = n if step < 0 else near[step]
            work = 0.0 if step < 0 else rest[here] + seconds[here]
            for e in range(ptr[here], ptr[here + 1]):
                above = source[e]
                short = travel[e] if step < 0 else min(travel[e], least[here])
                if seen[above] != n and found < window:
                    seen[above] = n
                    near[found] = above
                    rest[above], least[above] = work, short
                    found += 1
                elif seen[above] == n and work + short > rest[above] + least[above]:
                    rest[above], least[above] = work, short
            step += 1
        begin = 0.0
        for i in range(found):
            above = near[i]
            late[i] = -(start[above] + seconds[above] + rest[above] + least[above])
            begin = max(begin, start[above] + seconds[above] + rest[above])
        # those that would be too late from another device run here: the fewer, the later the others come
        order = np.argsort(late[:found])
        best = np.inf
        for here in range(found + 1):
            other = -late[order[here]] if here < found else 0.0
            best = min(best, max(other, _in_a_row(near, order, here, start, seconds, end)))
            if other <= begin:
                break
        start[n] = max(begin, best)
    return start


@njit(cache=True, nogil=True)
def _in_a_row(near, order, count, start, seconds, end):  # type: ignore[no-untyped-def]
    """When one device has done so many tasks at the earliest, each not before its start."""
    for i in range(count):
        end[i] = start[near[order[i]]]
    now = 0.0
    for place in np.argsort(end[:count]):
        now = max(now, end[place]) + seconds[near[order[place]]]
    return now
