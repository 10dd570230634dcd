"""The profiler's event lines: compact, one per step, written as they happen. Format 2 of rank-R.events.jsonl.

    {"k":"start","v":2,"rank":0,"world":2,"t":...,"host":...,"worker":...,"clock":"monotonic","boot":...,"launch":...}
    {"k":"group","g":0,"name":"0","ranks":[0,1],"threads":2,"backend":"gloo"}
    {"k":"op","h":0,"g":0,"kind":"all_reduce","bytes":4096}              a kind of operation, named once
    {"k":"clock","t":...,"offset":...,"uncertainty":...}                 added to t: rank 0's clock
    {"k":"step","n":1,"t":[begin,end],"s":[phase,from,to, ...],"w":[why,from,to, ...],"o":[...],"c":overhead}
    {"k":"now", ...}                                                     once a second while a step goes on
    {"k":"tail", ...}                                                    a step that never ended, at the end
    {"k":"end","t":...,"ok":true}

`begin` and `end` are nanoseconds of the clock; all other times of a line are nanoseconds after `begin`. An operation
is seven numbers in `o`: its `h`, its sequence number, issued, called, finished, and the start and end of the main
thread's wait for it; -1 where a moment was never seen. `called` is when the call that issued it returned. Operations
stand in the line of the step in which they finished, or in that of the step after.
"""

from __future__ import annotations

FORMAT = 2

PHASES = ("data", "forward", "backward", "optimizer", "other")
"""Names of the numbers in `s`: what the main thread was doing."""

WHYS = ("wait", "backward", "call")
"""Names of the numbers in `w`: inside Work.wait, between the last gradient and the return of backward (where DDP waits
for its buckets), inside the call that issues."""

OP_FIELDS = ("h", "seq", "issued", "called", "finished", "wait_from", "wait_to")
NEVER = -1
