/* Preloaded into skep, it moves the wall clock that skep reads by the seconds that a file holds, whenever they change. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

/* Before skep gives its rights up: afterwards it could not open the file. */
__attribute__((constructor)) static void open_shift(void)
{
    int file = open(SHIFT_FILE, O_RDONLY | O_CLOEXEC);
    void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED)
        abort();
    close(file);
    shift = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    int result = syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && shift)
        at->tv_sec += *shift;
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

/* skep starts itself with an environment of its own making. What it starts of itself is to live by this clock, too. */
static int is_skep(const char *program)
{
    return strcmp(program, "/proc/self/exe") == 0;
}

int posix_spawnp(pid_t *restrict pid, const char *restrict program, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *restrict attributes, char *const arguments[restrict],
                 char *const environment[restrict])
{
    int (*next)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                char *const[], char *const[]) = dlsym(RTLD_NEXT, "posix_spawnp");
    size_t count = 0;
    while (environment[count])
        count++;
    char *longer[count + 2];
    memcpy(longer, environment, count * sizeof *longer);
    longer[count] = "LD_PRELOAD=" OWN_FILE;
    longer[count + 1] = NULL;
    return next(pid, program, actions, attributes, arguments, is_skep(program) ? longer : environment);
}

int execvp(const char *program, char *const arguments[])
{
    int (*next)(const char *, char *const[]) = dlsym(RTLD_NEXT, "execvp");
    if (is_skep(program))
        setenv("LD_PRELOAD", OWN_FILE, 1);
    return next(program, arguments);
}
