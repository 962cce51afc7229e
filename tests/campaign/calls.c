/* Counts the calls that change or read files below a folder; makes one fail, or records all changes.
 *
 * To be preloaded (LD_PRELOAD) into the process that forks commands. It does nothing before
 * `calls_arm` or `calls_record` is called, by ctypes, in the fork: see tests/campaign/calls.py,
 * which also reads the record. Real work is done by system calls, never by libc's functions of the
 * same names, so nothing here calls itself. Sockets and pipes have no path below the folder.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* The order is that of KINDS in calls.py. */
enum kind { WRITE, PWRITE, FSYNC, FDATASYNC, RENAME, LINK, UNLINK, FALLOCATE, OPEN, CREATE, READ,
            PREAD, FTRUNCATE, MKDIR, SYNCFS, STAT, LIST, NUM_KINDS };
/* The order is that of `Change` in calls.py. */
enum change { WRITTEN, CUT, SYNCED, CREATED, RENAMED, LINKED, UNLINKED, FOLDER_MADE, FOLDER_REMOVED,
              FOLDER_SYNCED, ALL_SYNCED };
enum { SHORT = -1, STOP = -2 };

struct entry {
    int32_t change, name_bytes, other_bytes, data_bytes;
    int64_t inode, offset, mtime_ns;
};

static char folder[PATH_MAX];
static size_t folder_bytes;
static int failing_kind, failing_error, goes_on, record = -1;
static long failing_at;
static atomic_int armed;
static atomic_long counts[NUM_KINDS], injected;
static atomic_flag recording = ATOMIC_FLAG_INIT;

/* Begins to count calls below `path`, which is absolute and free of links.
 *
 * The call number `at` of `kind` fails with `error`, an errno, or moves half of its bytes (SHORT), or
 * this process is stopped before it, until it gets SIGCONT (STOP);
 * where `on` is set, all later ones of its kind do so as well. 0 as `at` makes none fail.
 */
__attribute__((visibility("default")))
void calls_arm(const char *path, int kind, long at, int error, int on)
{
    snprintf(folder, sizeof folder, "%s", path);
    folder_bytes = strlen(folder);
    failing_kind = kind, failing_at = at, failing_error = error, goes_on = on;
    atomic_store(&armed, 1);
}

/* Begins to append each change below the folder to a file that is open for appending. */
__attribute__((visibility("default"))) void calls_record(int descriptor) { record = descriptor; }

/* Ends all counting; returns how many calls were made to fail. */
__attribute__((visibility("default"))) long calls_disarm(void)
{
    atomic_store(&armed, 0);
    return atomic_load(&injected);
}

__attribute__((visibility("default"))) long calls_count(int kind)
{
    return atomic_load(&counts[kind]);
}

/* As libc's fstatat, which this library replaces. */
static int status_at(int place, const char *name, void *status, int flags)
{
    return syscall(SYS_newfstatat, place, name, status, flags);
}

static int status_of(int descriptor, struct stat *status)
{
    return status_at(descriptor, "", status, AT_EMPTY_PATH);
}

static int is_below(const char *path)
{
    return !strncmp(path, folder, folder_bytes)
        && (path[folder_bytes] == '/' || !path[folder_bytes]);
}

/* Finds the path of a descriptor; returns whether it is below the folder. */
static int finds_open(int descriptor, char *path)
{
    char link[64];
    if (!atomic_load(&armed))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return is_below(path);
}

/* Finds the absolute path of a name; returns whether it is below the folder. */
static int finds(int place, const char *name, char *path)
{
    char above[PATH_MAX];
    int saved = errno;
    if (!atomic_load(&armed) || !name)
        return 0;
    if (name[0] == '/')
        snprintf(path, PATH_MAX, "%s", name);
    else {
        above[0] = 0;
        if (place == AT_FDCWD)
            syscall(SYS_getcwd, above, sizeof above);
        else
            finds_open(place, above);
        size_t size = strnlen(above, sizeof above);
        if (size + strlen(name) + 2 > PATH_MAX)
            return 0;
        memcpy(path, above, size);
        path[size] = '/';
        strcpy(path + size + 1, name);
    }
    errno = saved;
    return is_below(path);
}

/* Counts a call; returns 0, or what is to be wrong with it. */
static int wrong(enum kind kind)
{
    long number = atomic_fetch_add(&counts[kind], 1) + 1;
    if (kind != (enum kind)failing_kind || !failing_at
        || !(number == failing_at || (goes_on && number > failing_at)))
        return 0;
    atomic_fetch_add(&injected, 1);
    if (failing_error == STOP) {
        syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
        return 0;
    }
    return failing_error;
}

#define FAIL_IF_DUE(kind)                 \
    do {                                  \
        int error_ = wrong(kind);         \
        if (error_ > 0) {                 \
            errno = error_;               \
            return -1;                    \
        }                                 \
    } while (0)

/* Changes and their records have one order: each is made while no other is. */
static void begin(void)
{
    if (record >= 0)
        while (atomic_flag_test_and_set(&recording))
            sched_yield();
}

static void end(void)
{
    if (record >= 0)
        atomic_flag_clear(&recording);
}

static void note(enum change change, int descriptor, int64_t offset, const char *name,
                 const char *other, const void *data, size_t size)
{
    struct stat status = {0};
    int saved = errno;
    if (record < 0)
        return;
    if (descriptor >= 0)
        status_of(descriptor, &status);
    struct entry entry = {
        change, (int32_t)strlen(name), (int32_t)strlen(other), (int32_t)size,
        (int64_t)status.st_ino, offset,
        status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec,
    };
    struct iovec parts[] = {
        {&entry, sizeof entry},
        {(void *)name, strlen(name)},
        {(void *)other, strlen(other)},
        {(void *)data, size},
    };
    syscall(SYS_writev, record, parts, 4);
    errno = saved;
}

static ssize_t do_write(int descriptor, const void *data, size_t size, off_t offset, int has_offset)
{
    char path[PATH_MAX];
    int below = finds_open(descriptor, path);
    if (below) {
        int error = wrong(has_offset ? PWRITE : WRITE);
        if (error > 0) {
            errno = error;
            return -1;
        }
        if (error == SHORT && size > 1)
            size /= 2;
    }
    if (below)
        begin();
    ssize_t done = has_offset ? syscall(SYS_pwrite64, descriptor, data, size, offset)
                              : syscall(SYS_write, descriptor, data, size);
    if (below && done > 0) {
        off_t at = has_offset ? offset : syscall(SYS_lseek, descriptor, 0, SEEK_CUR) - done;
        note(WRITTEN, descriptor, at, "", "", data, (size_t)done);
    }
    if (below)
        end();
    return done;
}

static ssize_t do_read(int descriptor, void *data, size_t size, off_t offset, int has_offset)
{
    char path[PATH_MAX];
    if (finds_open(descriptor, path)) {
        int error = wrong(has_offset ? PREAD : READ);
        if (error > 0) {
            errno = error;
            return -1;
        }
        if (error == SHORT && size > 1)
            size /= 2;
    }
    return has_offset ? syscall(SYS_pread64, descriptor, data, size, offset)
                      : syscall(SYS_read, descriptor, data, size);
}

static int do_open(int place, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    struct stat status;
    if (!finds(place, name, path))
        return syscall(SYS_openat, place, name, flags, mode);
    int was_there = !status_at(place, name, &status, AT_SYMLINK_NOFOLLOW);
    FAIL_IF_DUE(flags & O_CREAT && !was_there ? CREATE : OPEN);
    begin();
    int opened = syscall(SYS_openat, place, name, flags, mode);
    if (opened >= 0 && flags & O_CREAT && !was_there)
        note(CREATED, opened, 0, path, "", "", 0);
    else if (opened >= 0 && flags & O_TRUNC)
        note(CUT, opened, 0, "", "", "", 0);
    end();
    return opened;
}

static int do_sync(int descriptor, enum kind kind)
{
    char path[PATH_MAX];
    struct stat status;
    int below = finds_open(descriptor, path);
    if (below)
        FAIL_IF_DUE(kind);
    if (below)
        begin();
    int failed = syscall(kind == FSYNC ? SYS_fsync : SYS_fdatasync, descriptor);
    if (below && !failed && !status_of(descriptor, &status)) {
        if (S_ISDIR(status.st_mode))
            note(FOLDER_SYNCED, descriptor, 0, path, "", "", 0);
        else
            note(SYNCED, descriptor, 0, "", "", "", 0);
    }
    if (below)
        end();
    return failed;
}

static int do_sync_all(int descriptor)
{
    char path[PATH_MAX];
    int below = finds_open(descriptor, path);
    if (below)
        FAIL_IF_DUE(SYNCFS);
    if (below)
        begin();
    int failed = syscall(SYS_syncfs, descriptor);
    if (below && !failed)
        note(ALL_SYNCED, -1, 0, "", "", "", 0);
    if (below)
        end();
    return failed;
}

static int do_truncate(int descriptor, off_t size)
{
    char path[PATH_MAX];
    int below = finds_open(descriptor, path);
    if (below)
        FAIL_IF_DUE(FTRUNCATE);
    if (below)
        begin();
    int failed = syscall(SYS_ftruncate, descriptor, size);
    if (below && !failed)
        note(CUT, descriptor, size, "", "", "", 0);
    if (below)
        end();
    return failed;
}

static int do_rename(int place, const char *name, int other_place, const char *other)
{
    char path[PATH_MAX], target[PATH_MAX];
    int below = finds(place, name, path) | finds(other_place, other, target);
    if (below)
        FAIL_IF_DUE(RENAME);
    if (below)
        begin();
    int failed = syscall(SYS_renameat2, place, name, other_place, other, 0);
    if (below && !failed)
        note(RENAMED, -1, 0, path, target, "", 0);
    if (below)
        end();
    return failed;
}

static int do_link(int place, const char *name, int other_place, const char *other, int flags)
{
    char path[PATH_MAX], target[PATH_MAX];
    int below = finds(place, name, path) | finds(other_place, other, target);
    if (below)
        FAIL_IF_DUE(LINK);
    if (below)
        begin();
    int failed = syscall(SYS_linkat, place, name, other_place, other, flags);
    if (below && !failed)
        note(LINKED, -1, 0, path, target, "", 0);
    if (below)
        end();
    return failed;
}

static int do_unlink(int place, const char *name, int flags)
{
    char path[PATH_MAX];
    int below = finds(place, name, path);
    if (below)
        FAIL_IF_DUE(UNLINK);
    if (below)
        begin();
    int failed = syscall(SYS_unlinkat, place, name, flags);
    if (below && !failed)
        note(flags & AT_REMOVEDIR ? FOLDER_REMOVED : UNLINKED, -1, 0, path, "", "", 0);
    if (below)
        end();
    return failed;
}

static int do_mkdir(int place, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    struct stat status;
    /* What is there already is no failure of the disk. */
    int below = finds(place, name, path) && status_at(place, name, &status, AT_SYMLINK_NOFOLLOW);
    if (below)
        FAIL_IF_DUE(MKDIR);
    if (below)
        begin();
    int failed = syscall(SYS_mkdirat, place, name, mode);
    if (below && !failed)
        note(FOLDER_MADE, -1, 0, path, "", "", 0);
    if (below)
        end();
    return failed;
}

static int do_stat(int place, const char *name, void *status, int flags)
{
    char path[PATH_MAX];
    if (name[0] ? finds(place, name, path) : finds_open(place, path))
        FAIL_IF_DUE(STAT);
    return status_at(place, name, status, flags);
}

/* libc's functions, each under all of its names. */
#define EXPORT __attribute__((visibility("default")))
#define ALSO(name, of) EXPORT extern __typeof__(of) name __attribute__((alias(#of)))

EXPORT ssize_t write(int d, const void *data, size_t n) { return do_write(d, data, n, 0, 0); }
EXPORT ssize_t pwrite(int d, const void *data, size_t n, off_t at)
{
    return do_write(d, data, n, at, 1);
}
ALSO(pwrite64, pwrite);
/* The first part alone: a short write, as the system may always make one. */
EXPORT ssize_t writev(int d, const struct iovec *parts, int count)
{
    char path[PATH_MAX];
    if (!finds_open(d, path))
        return syscall(SYS_writev, d, parts, count);
    while (count > 1 && !parts->iov_len)
        parts++, count--;
    return count ? do_write(d, parts->iov_base, parts->iov_len, 0, 0) : 0;
}

EXPORT ssize_t read(int d, void *data, size_t n) { return do_read(d, data, n, 0, 0); }
EXPORT ssize_t __read_chk(int d, void *data, size_t n, size_t room)
{
    (void)room;
    return do_read(d, data, n, 0, 0);
}
EXPORT ssize_t pread(int d, void *data, size_t n, off_t at) { return do_read(d, data, n, at, 1); }
ALSO(pread64, pread);
EXPORT ssize_t __pread_chk(int d, void *data, size_t n, off_t at, size_t room)
{
    (void)room;
    return do_read(d, data, n, at, 1);
}
ALSO(__pread64_chk, __pread_chk);

#define MODE_OF(flags, last)                                            \
    mode_t mode = 0;                                                    \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) {      \
        va_list more;                                                   \
        va_start(more, last);                                           \
        mode = va_arg(more, mode_t);                                    \
        va_end(more);                                                   \
    }

EXPORT int open(const char *name, int flags, ...)
{
    MODE_OF(flags, flags)
    return do_open(AT_FDCWD, name, flags, mode);
}
ALSO(open64, open);
EXPORT int openat(int place, const char *name, int flags, ...)
{
    MODE_OF(flags, flags)
    return do_open(place, name, flags, mode);
}
ALSO(openat64, openat);
EXPORT int __open_2(const char *name, int flags) { return do_open(AT_FDCWD, name, flags, 0); }
ALSO(__open64_2, __open_2);
EXPORT int __openat_2(int place, const char *name, int flags)
{
    return do_open(place, name, flags, 0);
}
ALSO(__openat64_2, __openat_2);

EXPORT int fsync(int d) { return do_sync(d, FSYNC); }
EXPORT int fdatasync(int d) { return do_sync(d, FDATASYNC); }
EXPORT int syncfs(int d) { return do_sync_all(d); }
EXPORT int ftruncate(int d, off_t size) { return do_truncate(d, size); }
ALSO(ftruncate64, ftruncate);

EXPORT int fallocate(int d, int how, off_t at, off_t size)
{
    char path[PATH_MAX];
    if (finds_open(d, path))
        FAIL_IF_DUE(FALLOCATE);
    return syscall(SYS_fallocate, d, how, at, size);
}
ALSO(fallocate64, fallocate);
EXPORT int posix_fallocate(int d, off_t at, off_t size)
{
    return fallocate(d, 0, at, size) ? errno : 0;
}
ALSO(posix_fallocate64, posix_fallocate);

EXPORT int rename(const char *name, const char *other)
{
    return do_rename(AT_FDCWD, name, AT_FDCWD, other);
}
EXPORT int renameat(int place, const char *name, int other_place, const char *other)
{
    return do_rename(place, name, other_place, other);
}
EXPORT int link(const char *name, const char *other)
{
    return do_link(AT_FDCWD, name, AT_FDCWD, other, 0);
}
EXPORT int linkat(int place, const char *name, int other_place, const char *other, int flags)
{
    return do_link(place, name, other_place, other, flags);
}
EXPORT int unlink(const char *name) { return do_unlink(AT_FDCWD, name, 0); }
EXPORT int unlinkat(int place, const char *name, int flags) { return do_unlink(place, name, flags); }
EXPORT int rmdir(const char *name) { return do_unlink(AT_FDCWD, name, AT_REMOVEDIR); }
EXPORT int mkdir(const char *name, mode_t mode) { return do_mkdir(AT_FDCWD, name, mode); }
EXPORT int mkdirat(int place, const char *name, mode_t mode) { return do_mkdir(place, name, mode); }

/* The two structs have the same layout on 64-bit machines. */
#define STATS(stat_, lstat_, fstat_, fstatat_, status_)                                       \
    EXPORT int stat_(const char *n, struct status_ *to) { return do_stat(AT_FDCWD, n, to, 0); } \
    EXPORT int lstat_(const char *n, struct status_ *to)                                      \
    {                                                                                         \
        return do_stat(AT_FDCWD, n, to, AT_SYMLINK_NOFOLLOW);                                 \
    }                                                                                         \
    EXPORT int fstat_(int d, struct status_ *to) { return do_stat(d, "", to, AT_EMPTY_PATH); } \
    EXPORT int fstatat_(int place, const char *n, struct status_ *to, int flags)              \
    {                                                                                         \
        return do_stat(place, n, to, flags);                                                  \
    }
STATS(stat, lstat, fstat, fstatat, stat)
STATS(stat64, lstat64, fstat64, fstatat64, stat64)

static void *next_entry(DIR *folder)
{
    char path[PATH_MAX];
    void *(*real)(DIR *) = (void *(*)(DIR *))dlsym(RTLD_NEXT, "readdir64");
    int error = finds_open(dirfd(folder), path) ? wrong(LIST) : 0;
    if (error > 0) {
        errno = error;
        return NULL;
    }
    return real(folder);
}
EXPORT struct dirent *readdir(DIR *folder) { return next_entry(folder); }
EXPORT struct dirent64 *readdir64(DIR *folder) { return next_entry(folder); }
