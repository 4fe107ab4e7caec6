/* Files: their versions, ranges that are read from the page cache or from the disk, and ranges that the disk is asked for. */

enum { BLOCK_NBYTES = 512 }; /* what is cached of a file ends at a multiple of this (a sector), or with the file */
enum { READ_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK }; /* without O_NONBLOCK, opening a pipe would wait for a writer */

/* Read a range as far as its beginning is in the page cache, else return -1. Files of a tmpfs always are, but preadv2 does not
 * support them. Systems without preadv2 just read, and may wait for the disk. */
static ssize_t read_cached(int file, char *to, int64_t nbytes, int64_t offset)
{
#ifdef RWF_NOWAIT
    struct iovec room = {to, (size_t)nbytes};
    struct statfs system;
    ssize_t n = preadv2(file, &room, 1, offset, RWF_NOWAIT);
    if (n >= 0 || errno != EOPNOTSUPP) return n;
    if (fstatfs(file, &system) || system.f_type != TMPFS_MAGIC) return errno = EOPNOTSUPP, -1;
#endif
    return pread(file, to, (size_t)nbytes, offset);
}

/* Read a range, waiting for the disk. Fewer bytes come only at the end of the file, or after an error. */
static ssize_t read_waiting(int file, char *to, int64_t nbytes, int64_t offset)
{
    int64_t done = 0;
    while (done < nbytes) {
        ssize_t n = pread(file, to + done, (size_t)(nbytes - done), offset + done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 && !done ? n : done;
        done += n;
    }
    return done;
}

/* Read a range, waiting for the disk only if this call of the loops does. */
static ssize_t read_range(const work_t *work, int file, char *to, int64_t nbytes, int64_t offset)
{
    return work->files->waits ? read_waiting(file, to, nbytes, offset) : read_cached(file, to, nbytes, offset);
}

/* The version of a file: numbers that differ after a change; `local._version` in Python. */
static void version_of(const struct stat *found, int64_t *version)
{
#ifdef __APPLE__
    struct timespec changed = found->st_mtimespec, touched = found->st_ctimespec;
#else
    struct timespec changed = found->st_mtim, touched = found->st_ctim;
#endif
    version[0] = (int64_t)found->st_dev, version[1] = (int64_t)found->st_ino, version[2] = found->st_size;
    version[3] = changed.tv_sec * INT64_C(1000000000) + changed.tv_nsec;
    version[4] = touched.tv_sec * INT64_C(1000000000) + touched.tv_nsec;
}

/* Whether the result of `stat` is that of a file of this version. */
static int is_version(const struct stat *found, const int64_t *version)
{
    int64_t now[VERSION_NUMBERS];
    version_of(found, now);
    return !memcmp(now, version, sizeof now);
}

/* Whether an open file has this version. */
static int is_of_version(int file, const int64_t *version)
{
    struct stat found;
    return !fstat(file, &found) && is_version(&found, version);
}

/* Close the file of a lane. Record if it does not have the version that it must have. */
static void close_file(lane_t *lane)
{
    if (lane->file < 0) return;
    const int64_t *version = lane->work->files->version;
    if (version && !is_of_version(lane->file, version + lane->number * VERSION_NUMBERS)) lane->work->is_changed = 1;
    close(lane->file);
    lane->file = -1;
}

/* Return the descriptor of the file of a row; -1 if it cannot be opened. */
static int file_of(lane_t *lane, int64_t row)
{
    const files_t *files = lane->work->files;
    int64_t number = files->file[row];
    if (lane->file < 0 || lane->number != number) {
        close_file(lane);
        lane->file = open(files->paths + files->path_at[number], READ_FLAGS);
        lane->number = number;
    }
    return lane->file;
}

/* Return NO_FILE if a file could not be opened because it does not exist, else READ_OTHERWISE. */
static int64_t no_file(void) { return errno == ENOENT || errno == ENOTDIR ? NO_FILE : READ_OTHERWISE; }

/* Read a whole file. Return its length, NO_FILE if it does not exist, or READ_OTHERWISE if it is empty, longer than nbytes, cannot
 * be read, or is not in the page cache in a call that does not wait. */
static int64_t read_file(const work_t *work, const char *path, char *room, int64_t nbytes)
{
    char next;
    int file = open(path, READ_FLAGS);
    if (file < 0) return no_file();
    ssize_t done = read_range(work, file, room, nbytes, 0);
    /* If the read ended at a multiple of BLOCK_NBYTES, the file may go on: another byte is tried. */
    int ends_in_block = done < nbytes && done % BLOCK_NBYTES;
    int is_whole = done > 0 && (ends_in_block || read_range(work, file, &next, 1, done) == 0);
    close(file);
    return is_whole ? done : READ_OTHERWISE;
}

/* Ask the system to read a range of a file ahead. Errors are ignored here, since a read of the range meets them again. */
#ifdef POSIX_FADV_WILLNEED
static void ask_for(int file, int64_t first, int64_t nbytes)
{
    posix_fadvise(file, first, nbytes, POSIX_FADV_WILLNEED);
}
#else /* macOS */
static void ask_for(int file, int64_t first, int64_t nbytes)
{
    struct radvisory range = {.ra_offset = first, .ra_count = nbytes < INT_MAX ? (int)nbytes : INT_MAX};
    fcntl(file, F_RDADVISE, &range);
}
#endif
