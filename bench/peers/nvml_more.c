/* The stand-in driver of the tests, with the calls that only nvtop makes. */
#include "../../tests/devices/standin/nvml_standin.c"

API nvmlDeviceGetMaxPcieLinkGeneration(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, pcie_gen); return OK; }
API nvmlDeviceGetMaxPcieLinkWidth(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, pcie_width); return OK; }
API nvmlDeviceGetTemperatureThreshold(struct handle *h, int type, unsigned *out) {
    ENTER(h)
    *out = type == 0 ? 95 : 90;       /* shutdown, slowdown */
    return OK;
}

/* The first version of the list has no instances. */
struct process_v1 { unsigned pid; unsigned long long bytes; };
static int processes_v1(const struct part *p, int kind, unsigned *count, struct process_v1 *out) {
    struct process found[MOST_PROCS];
    unsigned room = *count;
    *count = MOST_PROCS;
    processes(p, kind, count, found);
    if (*count > room || (*count && !out)) return TOO_SMALL;
    for (unsigned i = 0; i < *count; i++)
        out[i] = (struct process_v1){ found[i].pid, found[i].bytes };
    return OK;
}
API nvmlDeviceGetComputeRunningProcesses(struct handle *h, unsigned *count, struct process_v1 *out) {
    ENTER(h) return processes_v1(&p, 0, count, out);
}
API nvmlDeviceGetGraphicsRunningProcesses(struct handle *h, unsigned *count, struct process_v1 *out) {
    ENTER(h) return processes_v1(&p, 1, count, out);
}
