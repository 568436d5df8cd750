"""What the users of one machine agree on: who holds which device, and who waits before whom.

There is no daemon and no arbiter. Users read each other's notices (`notices`) in a folder that root
has set up once (`folder`): claims on devices (`claims`, whose rule is in `taking`) and places in
the line of waiting runs (`line`). Nothing is believed but what the kernel says: who owns a file,
and whether a process of that user still holds the write lock on it. No order follows from a clock.

Whoever does not want to take part can't be kept from a GPU by this: a user may always start a
program by hand. What nobody can do is to speak for somebody else, to make another's claim or place
not count, or to make others wait for a file.

Standard library only. This room knows nothing of queues, run folders or supervisors.
"""
