/* A stand-in for NVIDIA's libnvidia-ml.so.1: answers from a text file, for tests without a GPU.
 *
 * NVML_STANDIN_STATE names the file. It is read again whenever it changes, so a test can change
 * the machine under a running program. Lines, in any order, later ones win:
 *
 *   count 8                          how many GPUs (64 at most; 1 without the line)
 *   driver 580.159.03                driver version
 *   cuda 13000                       CUDA version times 1000
 *   init 18                          nvmlInit fails with this code (9 not loaded, 18 mismatch)
 *   init_hang 1                      nvmlInit never returns while this stands
 *   slow_ms 200                      every call takes this long
 *   crash 1                          the next call ends the process with a segmentation fault
 *   gpu 0 util 37                    a value; "na" makes the driver say that it is not supported;
 *   gpu * util 37                    for all GPUs; the keys are in VALUES below
 *   gpu 0 name NVIDIA A100 80GB      text to the end of the line
 *   gpu 0 uuid GPU-…
 *   gpu 0 lost 1                     it fell off the bus: every call says so
 *   gpu 0 gone 1                     the driver no longer lists it; later ones move up
 *   gpu 0 hang 1                     calls about it do not return while this stands
 *   gpu 0 error nvmlDeviceGetFanSpeed 3     that call fails with that code ("*": every call)
 *   gpu 0 proc 1234 1073741824 compute 55   pid, bytes or na, compute|graphics|mps, SM %
 *   gpu 0 slice 0 MIG-…              it is in MIG mode (mig 1) and has this slice
 *   gpu 0 slice 0 mem_used 100       and its values; "gpu 0 slice 0 proc …" as above
 *
 * NVML_STANDIN_CALLS names a file that counts calls by name while the program runs; see
 * build.py, calls().
 *
 * An old driver is one that lacks functions: -DOLD leaves out what came with drivers 510 to 550.
 * Signatures and the protocol of each call as in nvml.h; codes are nvmlReturn_t's.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       LOST = 15 };
#define MOST_GPUS 64
#define MOST_SLICES 7
#define MOST_PROCS 256
#define MOST_ERRORS 32
#define NA INT64_MIN
#define API __attribute__((visibility("default"))) int

/* key, value of a machine that nobody uses */
#define VALUES(X) \
    X(util, 0) X(mem_util, 0) X(enc_util, 0) X(dec_util, 0) \
    X(mem_total, 85899345920) X(mem_used, 4718592) X(mem_reserved, 650000000) \
    X(temp, 33) X(power, 54000) X(power_limit, 400000) X(clock_sm, 210) X(clock_mem, 1593) \
    X(clock_sm_max, 1410) X(clock_mem_max, 1593) X(fan, NA) X(reasons, 1) X(pstate, 0) \
    X(persistence, 1) X(compute_mode, 0) X(ecc_corrected, 0) X(ecc_uncorrected, 0) \
    X(remap_pending, 0) X(remap_failure, 0) X(mig, NA) X(pcie_gen, 4) X(pcie_width, 16) \
    X(pcie_tx, 1000) X(pcie_rx, 2000) X(major, 8) X(minor, 0) X(lost, 0) X(gone, 0) X(hang, 0)
#define AS_ENUM(key, value) K_##key,
enum { VALUES(AS_ENUM) KEYS };
#define AS_NAME(key, value) #key,
static const char *const key_names[] = { VALUES(AS_NAME) };
#define AS_VALUE(key, value) value,
static const int64_t defaults[] = { VALUES(AS_VALUE) };

struct proc { unsigned pid; unsigned long long bytes; int kind; unsigned sm; };
struct fault { char symbol[64]; int code; };
struct part {                         /* a GPU, or a slice of one */
    int64_t value[KEYS];
    char name[96], uuid[96];
    struct proc procs[MOST_PROCS];
    struct fault faults[MOST_ERRORS];
    int proc_count, fault_count, exists;
};
struct machine {
    int count, init, init_hang, slow_ms, crash, cuda;
    char driver[80];
    struct part gpu[MOST_GPUS], slice[MOST_GPUS][MOST_SLICES];
};
struct handle { int gpu, slice; };    /* slice -1: the GPU itself */

static struct machine now, next;
static struct handle handles[MOST_GPUS][MOST_SLICES + 1];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct timespec read_at;
static off_t read_size = -1;
static ino_t read_inode;
static int initialized;

/* ---- the state file ---- */

static void reset_part(struct part *p) {
    memset(p, 0, sizeof *p);
    memcpy(p->value, defaults, sizeof defaults);
}

static int64_t number(const char *text) {
    return strcmp(text, "na") ? strtoll(text, NULL, 0) : NA;
}

static void set(struct part *p, const char *key, char *rest) {
    if (!strcmp(key, "name")) {
        snprintf(p->name, sizeof p->name, "%s", rest);
    } else if (!strcmp(key, "uuid")) {
        snprintf(p->uuid, sizeof p->uuid, "%s", rest);
    } else if (!strcmp(key, "error") && p->fault_count < MOST_ERRORS) {
        struct fault *f = &p->faults[p->fault_count];
        if (sscanf(rest, "%63s %d", f->symbol, &f->code) == 2) p->fault_count++;
    } else if (!strcmp(key, "proc") && p->proc_count < MOST_PROCS) {
        char bytes[32] = "na", kind[16] = "compute";
        struct proc *q = &p->procs[p->proc_count];
        q->sm = 0;
        if (sscanf(rest, "%u %31s %15s %u", &q->pid, bytes, kind, &q->sm) < 1) return;
        q->bytes = strcmp(bytes, "na") ? strtoull(bytes, NULL, 0) : ~0ULL;
        q->kind = !strcmp(kind, "graphics") ? 1 : !strcmp(kind, "mps") ? 2 : 0;
        p->proc_count++;
    } else {
        for (int k = 0; k < KEYS; k++)
            if (!strcmp(key, key_names[k])) p->value[k] = number(rest);
    }
}

static void read_line(struct machine *m, char *line) {
    char word[32] = "", key[32] = "";
    int used = 0, which = 0, slice = 0;
    line[strcspn(line, "\n#")] = 0;
    if (sscanf(line, "%31s %n", word, &used) < 1) return;
    char *rest = line + used;
    if (!strcmp(word, "count")) m->count = atoi(rest);
    else if (!strcmp(word, "driver")) snprintf(m->driver, sizeof m->driver, "%s", rest);
    else if (!strcmp(word, "cuda")) m->cuda = atoi(rest);
    else if (!strcmp(word, "init")) m->init = atoi(rest);
    else if (!strcmp(word, "init_hang")) m->init_hang = atoi(rest);
    else if (!strcmp(word, "slow_ms")) m->slow_ms = atoi(rest);
    else if (!strcmp(word, "crash")) m->crash = atoi(rest);
    if (strcmp(word, "gpu")) return;
    if (sscanf(rest, "* %31s %n", key, &used) == 1) {
        for (int i = 0; i < MOST_GPUS; i++) set(&m->gpu[i], key, rest + used);
        return;
    }
    if (sscanf(rest, "%d %31s %n", &which, key, &used) < 2 || which < 0 || which >= MOST_GPUS)
        return;
    rest += used;
    if (strcmp(key, "slice")) {
        set(&m->gpu[which], key, rest);
        return;
    }
    char first[96] = "";
    if (sscanf(rest, "%d %95s %n", &slice, first, &used) < 2 || slice < 0 || slice >= MOST_SLICES)
        return;
    struct part *p = &m->slice[which][slice];
    if (!strncmp(first, "MIG-", 4)) {
        p->exists = 1;
        snprintf(p->uuid, sizeof p->uuid, "%s", first);
    } else {
        set(p, first, rest + used);
    }
}

/* Called with the lock held. */
static void read_state(void) {
    const char *path = getenv("NVML_STANDIN_STATE");
    struct stat s;
    if (!path || stat(path, &s)) {
        memset(&s, 0, sizeof s);
        path = NULL;
    }
    if (s.st_mtim.tv_sec == read_at.tv_sec && s.st_mtim.tv_nsec == read_at.tv_nsec &&
        s.st_size == read_size && s.st_ino == read_inode)
        return;
    memset(&next, 0, sizeof next);
    next.count = 1;
    next.cuda = 13000;
    strcpy(next.driver, "580.159.03");
    for (int i = 0; i < MOST_GPUS; i++) {
        reset_part(&next.gpu[i]);
        strcpy(next.gpu[i].name, "NVIDIA Stand-in 80GB");
        sprintf(next.gpu[i].uuid, "GPU-%08x-0000-4000-8000-%012x", 0x1000 + i, i);
        for (int j = 0; j < MOST_SLICES; j++) {
            reset_part(&next.slice[i][j]);
            next.slice[i][j].value[K_mem_total] = 10200547328;
            strcpy(next.slice[i][j].name, "NVIDIA Stand-in 80GB MIG 1g.10gb");
        }
    }
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    while (file && fgets(line, sizeof line, file)) read_line(&next, line);
    if (file) fclose(file);
    now = next;
    read_at = s.st_mtim;
    read_size = s.st_size;
    read_inode = s.st_ino;
}

/* ---- counting ---- */

struct counter { char name[56]; uint64_t calls; };
#define MOST_COUNTERS 256
static struct counter *counters;

static struct counter *counter_of(const char *symbol) {
    static struct counter none[MOST_COUNTERS];
    pthread_mutex_lock(&lock);
    if (!counters) {
        const char *path = getenv("NVML_STANDIN_CALLS");
        int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
        void *map = MAP_FAILED;
        if (fd >= 0 && !ftruncate(fd, sizeof none))
            map = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd);
        counters = map == MAP_FAILED ? none : map;
    }
    struct counter *c = counters;
    while (c->name[0] && strcmp(c->name, symbol)) c++;
    if (!c->name[0]) snprintf(c->name, sizeof c->name, "%s", symbol);
    pthread_mutex_unlock(&lock);
    return c;
}

/* ---- what every call begins with ---- */

static void sleep_ms(int ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    while (nanosleep(&t, &t)) {}
}

static int hangs(const struct handle *h) {
    pthread_mutex_lock(&lock);
    read_state();
    int answer = h ? now.gpu[h->gpu].value[K_hang] > 0 : now.init_hang;
    pthread_mutex_unlock(&lock);
    return answer;
}

/* Copies the device's state, so that nothing is locked while the caller reads it. */
static int enter(const char *symbol, const struct handle *h, struct part *copy) {
    while (hangs(h)) sleep_ms(20);
    pthread_mutex_lock(&lock);
    int slow = now.slow_ms, code = OK;
    if (now.crash) *(volatile int *)0 = 1;
    if (!initialized && strcmp(symbol, "nvmlInitWithFlags")) code = UNINITIALIZED;
    if (h && code == OK) {
        const struct part *gpu = &now.gpu[h->gpu];
        const struct part *p = h->slice < 0 ? gpu : &now.slice[h->gpu][h->slice];
        if (gpu->value[K_lost] > 0 || gpu->value[K_gone] > 0) code = LOST;
        for (int i = 0; i < p->fault_count && code == OK; i++)
            if (!strcmp(p->faults[i].symbol, symbol) || !strcmp(p->faults[i].symbol, "*"))
                code = p->faults[i].code;
        if (copy) *copy = *p;
    }
    pthread_mutex_unlock(&lock);
    if (slow) sleep_ms(slow);
    return code;
}

#define COUNT \
    static struct counter *own_counter; \
    if (!own_counter) own_counter = counter_of(__func__); \
    __atomic_add_fetch(&own_counter->calls, 1, __ATOMIC_RELAXED);
#define ENTER(h) \
    COUNT \
    struct part p; \
    { int entered = enter(__func__, (h), &p); if (entered) return entered; }
#define GIVE(target, key) \
    do { if (p.value[K_##key] == NA) return NOT_SUPPORTED; \
         (target) = p.value[K_##key]; } while (0)

static int give_text(char *out, unsigned size, const char *text) {
    if (strlen(text) >= size) return TOO_SMALL;
    strcpy(out, text);
    return OK;
}

/* ---- the library ---- */

API nvmlInitWithFlags(unsigned flags) {
    COUNT (void)flags;
    while (hangs(NULL)) sleep_ms(20);
    int code = enter(__func__, NULL, NULL);
    pthread_mutex_lock(&lock);
    if (code == OK) code = now.init;
    if (code == OK) {
        for (int i = 0; i < MOST_GPUS; i++)
            for (int j = 0; j <= MOST_SLICES; j++)
                handles[i][j] = (struct handle){ i, j - 1 };
        initialized++;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlShutdown(void) { COUNT initialized = 0; return OK; }

__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    static __thread char text[32];
    snprintf(text, sizeof text, "stand-in error %d", code);
    return text;
}

static int begin(const char *symbol) { return enter(symbol, NULL, NULL); }
#define BEGIN COUNT { int begun = begin(__func__); if (begun) return begun; }

API nvmlSystemGetDriverVersion(char *out, unsigned size) { BEGIN return give_text(out, size, now.driver); }
API nvmlSystemGetNVMLVersion(char *out, unsigned size) { BEGIN return give_text(out, size, "13.580"); }
API nvmlSystemGetCudaDriverVersion(int *out) { BEGIN *out = now.cuda; return OK; }
API nvmlSystemGetCudaDriverVersion_v2(int *out) { BEGIN *out = now.cuda; return OK; }

static int listed(int place) {        /* the GPU at an index, -1 for none */
    int found = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < now.count && i < MOST_GPUS && found < 0; i++)
        if (now.gpu[i].value[K_gone] <= 0 && place-- == 0) found = i;
    pthread_mutex_unlock(&lock);
    return found;
}

static struct part part_of(int gpu, int slice) {
    pthread_mutex_lock(&lock);
    struct part copy = slice < 0 ? now.gpu[gpu] : now.slice[gpu][slice];
    pthread_mutex_unlock(&lock);
    return copy;
}

API nvmlDeviceGetCount_v2(unsigned *out) {
    BEGIN
    for (*out = 0; listed(*out) >= 0; ++*out) {}
    return OK;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **out) {
    BEGIN
    int gpu = listed(index);
    if (gpu < 0) return INVALID;
    *out = &handles[gpu][0];
    return enter(__func__, *out, NULL);
}

/* As nvml.h has it: one GPU that is lost can spoil the search for any other. */
API nvmlDeviceGetHandleByUUID(const char *uuid, struct handle **out) {
    BEGIN
    int found = -1;
    for (int i = 0, gpu; (gpu = listed(i)) >= 0; i++) {
        struct part p = part_of(gpu, -1);
        if (p.value[K_lost] > 0) return LOST;
        if (!strcmp(p.uuid, uuid)) found = gpu;
    }
    if (found < 0) return NOT_FOUND;
    *out = &handles[found][0];
    return enter(__func__, *out, NULL);
}

API nvmlDeviceGetIndex(struct handle *h, unsigned *out) {
    ENTER(h)
    for (int i = 0; listed(i) >= 0; i++)
        if (listed(i) == h->gpu) *out = i;
    return OK;
}
API nvmlDeviceGetMinorNumber(struct handle *h, unsigned *out) { ENTER(h) *out = h->gpu; return OK; }
API nvmlDeviceGetName(struct handle *h, char *out, unsigned size) { ENTER(h) return give_text(out, size, p.name); }
API nvmlDeviceGetUUID(struct handle *h, char *out, unsigned size) { ENTER(h) return give_text(out, size, p.uuid); }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
API nvmlDeviceGetPciInfo_v3(struct handle *h, struct pci *out) {
    ENTER(h)
    memset(out, 0, sizeof *out);
    out->bus = 0x10 + h->gpu;
    sprintf(out->legacy, "0000:%02X:00.0", out->bus);
    sprintf(out->bus_id, "00000000:%02X:00.0", out->bus);
    return OK;
}
API nvmlDeviceGetCudaComputeCapability(struct handle *h, int *major, int *minor) {
    ENTER(h) GIVE(*major, major); GIVE(*minor, minor); return OK;
}

struct rates { unsigned gpu, memory; };
API nvmlDeviceGetUtilizationRates(struct handle *h, struct rates *out) {
    ENTER(h)
    if (h->slice >= 0) return NOT_SUPPORTED;
    GIVE(out->gpu, util); GIVE(out->memory, mem_util); return OK;
}
API nvmlDeviceGetEncoderUtilization(struct handle *h, unsigned *out, unsigned *period) {
    ENTER(h) GIVE(*out, enc_util); *period = 167000; return OK;
}
API nvmlDeviceGetDecoderUtilization(struct handle *h, unsigned *out, unsigned *period) {
    ENTER(h) GIVE(*out, dec_util); *period = 167000; return OK;
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
API nvmlDeviceGetMemoryInfo(struct handle *h, struct memory *out) {
    ENTER(h)
    GIVE(out->total, mem_total); GIVE(out->used, mem_used);
    if (p.value[K_mem_reserved] != NA) out->used += p.value[K_mem_reserved];
    out->free = out->total - out->used;
    return OK;
}
#ifndef OLD
API nvmlDeviceGetMemoryInfo_v2(struct handle *h, struct memory_v2 *out) {
    ENTER(h)
    if (out->version != 0x02000028) return 25;
    GIVE(out->total, mem_total); GIVE(out->used, mem_used); GIVE(out->reserved, mem_reserved);
    out->free = out->total - out->used - out->reserved;
    return OK;
}
struct temperature { unsigned version; int sensor, value; };
API nvmlDeviceGetTemperatureV(struct handle *h, struct temperature *out) {
    ENTER(h) GIVE(out->value, temp); return OK;
}
API nvmlDeviceGetCurrentClocksEventReasons(struct handle *h, unsigned long long *out) {
    ENTER(h) GIVE(*out, reasons); return OK;
}
#endif
API nvmlDeviceGetTemperature(struct handle *h, int sensor, unsigned *out) {
    ENTER(h) (void)sensor; GIVE(*out, temp); return OK;
}
API nvmlDeviceGetCurrentClocksThrottleReasons(struct handle *h, unsigned long long *out) {
    ENTER(h) GIVE(*out, reasons); return OK;
}
API nvmlDeviceGetPowerUsage(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, power); return OK; }
API nvmlDeviceGetEnforcedPowerLimit(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, power_limit); return OK; }
API nvmlDeviceGetPowerManagementLimit(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, power_limit); return OK; }
API nvmlDeviceGetClockInfo(struct handle *h, int type, unsigned *out) {
    ENTER(h)
    if (type == 2) GIVE(*out, clock_mem); else GIVE(*out, clock_sm);
    return OK;
}
API nvmlDeviceGetMaxClockInfo(struct handle *h, int type, unsigned *out) {
    ENTER(h)
    if (type == 2) GIVE(*out, clock_mem_max); else GIVE(*out, clock_sm_max);
    return OK;
}
API nvmlDeviceGetPerformanceState(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, pstate); return OK; }
API nvmlDeviceGetFanSpeed(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, fan); return OK; }
API nvmlDeviceGetPersistenceMode(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, persistence); return OK; }
API nvmlDeviceGetComputeMode(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, compute_mode); return OK; }
API nvmlDeviceGetEccMode(struct handle *h, unsigned *current, unsigned *pending) {
    ENTER(h)
    if (p.value[K_ecc_uncorrected] == NA) return NOT_SUPPORTED;
    *current = *pending = 1;
    return OK;
}
API nvmlDeviceGetTotalEccErrors(struct handle *h, int type, int counter, unsigned long long *out) {
    ENTER(h) (void)counter;
    if (type == 1) GIVE(*out, ecc_uncorrected); else GIVE(*out, ecc_corrected);
    return OK;
}
API nvmlDeviceGetRemappedRows(struct handle *h, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failure) {
    ENTER(h)
    *corrected = *uncorrected = 0;
    GIVE(*pending, remap_pending); GIVE(*failure, remap_failure);
    return OK;
}
API nvmlDeviceGetCurrPcieLinkGeneration(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, pcie_gen); return OK; }
API nvmlDeviceGetCurrPcieLinkWidth(struct handle *h, unsigned *out) { ENTER(h) GIVE(*out, pcie_width); return OK; }
API nvmlDeviceGetPcieThroughput(struct handle *h, int counter, unsigned *out) {
    ENTER(h)
    if (counter == 0) GIVE(*out, pcie_tx); else GIVE(*out, pcie_rx);
    sleep_ms(20);                     /* a real one measures for that long */
    return OK;
}

/* The struct has been the same since _v2: pid, bytes, GPU and compute instance. */
struct process { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };
static int processes(const struct part *p, int kind, unsigned *count, struct process *out) {
    unsigned room = *count, found = 0;
    for (int i = 0; i < p->proc_count; i++) {
        if (p->procs[i].kind != kind) continue;
        if (found < room && out)
            out[found] = (struct process){ p->procs[i].pid, p->procs[i].bytes, ~0u, ~0u };
        found++;
    }
    *count = found;
    return found > room || (found && !out) ? TOO_SMALL : OK;
}
#define LIST(name, kind) \
    API name(struct handle *h, unsigned *count, struct process *out) { \
        ENTER(h) return processes(&p, kind, count, out); \
    }
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)
#ifndef OLD
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2)
#endif

struct sample { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };
API nvmlDeviceGetProcessUtilization(struct handle *h, struct sample *out, unsigned *count,
                                    unsigned long long since) {
    ENTER(h) (void)since;
    if (h->slice >= 0 || p.value[K_mig] > 0) return NOT_SUPPORTED;
    if (!p.proc_count) return NOT_FOUND;
    if (!out || *count < (unsigned)p.proc_count) { *count = p.proc_count; return TOO_SMALL; }
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    for (int i = 0; i < p.proc_count; i++)
        out[i] = (struct sample){ p.procs[i].pid, t.tv_sec * 1000000ULL + t.tv_nsec / 1000,
                                  p.procs[i].sm, 0, 0, 0 };
    *count = p.proc_count;
    return OK;
}

#ifndef OLD
API nvmlDeviceGetMigMode(struct handle *h, unsigned *current, unsigned *pending) {
    ENTER(h) GIVE(*current, mig); *pending = *current; return OK;
}
API nvmlDeviceGetMaxMigDeviceCount(struct handle *h, unsigned *out) {
    ENTER(h) *out = p.value[K_mig] > 0 ? MOST_SLICES : 0; return OK;
}
API nvmlDeviceGetMigDeviceHandleByIndex(struct handle *h, unsigned index, struct handle **out) {
    ENTER(h)
    if (index >= MOST_SLICES || !part_of(h->gpu, index).exists) return NOT_FOUND;
    *out = &handles[h->gpu][index + 1];
    return OK;
}
API nvmlDeviceIsMigDeviceHandle(struct handle *h, unsigned *out) { ENTER(h) *out = h->slice >= 0; return OK; }
API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct handle *h, struct handle **out) {
    ENTER(h) *out = &handles[h->gpu][0]; return OK;
}
API nvmlDeviceGetGpuInstanceId(struct handle *h, unsigned *out) { ENTER(h) *out = h->slice + 1; return OK; }
API nvmlDeviceGetComputeInstanceId(struct handle *h, unsigned *out) { ENTER(h) *out = 0; return OK; }
#endif
