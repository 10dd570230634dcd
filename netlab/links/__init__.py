"""What carries a WAN link: the kernel's sch_netem or our own relay."""
