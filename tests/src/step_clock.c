/*
 * The wall clock of one process, as a test sets it: preloaded, it answers for the C library. What it shows
 * stands in the file that STEP_CLOCK names, see step_clock.rs. All other clocks are the machine's.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct reading {
    int64_t micros;
    /* Whether it stands still at these, or is so far ahead of the machine's clock. */
    int64_t is_stopped;
};

static volatile struct {
    struct reading readings[2];
    /* Which of them counts. One byte is never seen half written. */
    unsigned char current;
} *file;

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("STEP_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *file, PROT_READ, MAP_SHARED, fd, 0);
    /* On the machine's time a test would show nothing. */
    if (mapped == MAP_FAILED) _exit(86);
    close(fd);
    file = mapped;
}

/* Not the C library's function, which is this one. */
static int machine_gettime(clockid_t clock, struct timespec *time) {
    return (int)syscall(SYS_clock_gettime, clock, time);
}

static int64_t wall_micros(void) {
    struct timespec machine;
    machine_gettime(CLOCK_REALTIME, &machine);
    int64_t micros = (int64_t)machine.tv_sec * 1000000 + machine.tv_nsec / 1000;
    /* Before the constructor: the allocator asks for the time, too. */
    if (!file) return micros;
    unsigned char current = __atomic_load_n(&file->current, __ATOMIC_ACQUIRE) & 1;
    int64_t set = file->readings[current].micros;
    return file->readings[current].is_stopped ? set : micros + set;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return machine_gettime(clock, time);
    int64_t micros = wall_micros();
    time->tv_sec = micros / 1000000;
    time->tv_nsec = micros % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    int64_t micros = wall_micros();
    time->tv_sec = micros / 1000000;
    time->tv_usec = micros % 1000000;
    return 0;
}

time_t time(time_t *where) {
    time_t seconds = wall_micros() / 1000000;
    if (where) *where = seconds;
    return seconds;
}
