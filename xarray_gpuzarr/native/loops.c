/* What would hold Python's lock a thousand times, done without it: read small files, decode and place chunks.
 *
 * library.py loads this; whoever calls it owns all memory, and has another way to do the same. So nothing is explained
 * here: what a function does not know how to treat, it leaves, and says so.
 * Addresses are lent as integers. Decoders are those of the libraries that Python calls otherwise.
 */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum codec { RAW, ZSTD, BLOSC, LZ4, ZLIB, GZIP };
enum { MOST_AXES = 64, MOST_THREADS = 64, BLOCK_NBYTES = 512, LEAST_PARTED_NBYTES = 32 * 1024 };
enum { ZSTD_ERRORS = 120, ZSTD_BLOCK_NBYTES = 128 * 1024, BLOSC_HEADER_NBYTES = 16, BLOSC_LEAST_INFLATED = 32 * 1024 };

typedef size_t decode_zstd_t(void *, void *, size_t, const void *, size_t);
typedef int decode_blosc_t(const void *, void *, size_t, int);
typedef int decode_lz4_t(const char *, char *, int, int);
typedef int inflate_t(void *, const void *, size_t, void *, size_t, size_t *, size_t *);
typedef struct { const void *src; size_t size, pos; } in_buffer_t;   /* zstd.h: ZSTD_inBuffer */
typedef struct { void *dst; size_t size, pos; } out_buffer_t;        /* ZSTD_outBuffer */
typedef size_t stream_zstd_t(void *, out_buffer_t *, in_buffer_t *);
typedef size_t restart_zstd_t(void *);
typedef int items_of_blosc_t(const void *, int, int, void *);
typedef int part_of_lz4_t(const char *, char *, int, int, int);
typedef void *make_t(void);
typedef void free_t(void *); /* what it returns is not looked at */

/* One array, and where it goes. */
typedef struct {
    int64_t codec, chunk_nbytes, itemsize, ndim;
    const int64_t *in_strides;  /* of a decoded chunk, in bytes, between wanted elements */
    const int64_t *out_strides; /* in bytes */
    char *out;
    void *decode, *make_context, *free_context;
    void *decode_part, *restart; /* what decodes as much as is wanted */
} job_t;

/* Bytes of a decoded chunk: from `first` to before `end`. */
typedef struct { int64_t first, end; } span_t;

/* Chunks, one row each, and the boxes that they give. */
typedef struct {
    const char *const *src;     /* encoded */
    const int64_t *nbytes;
    const int64_t *first_box;   /* of each row, and of the one behind the last */
    const uint8_t *direct;      /* whether its only box is the chunk, and one run of memory in the output */
    const int64_t *in_at;       /* per box: first byte in the decoded chunk */
    const int64_t *out_at;      /* first byte in the output */
    const int64_t *extent;      /* ndim elements each */
    uint8_t *left;              /* per row: whether it was left */
} rows_t;

static uint32_t little(const char *at)
{
    const unsigned char *b = (const unsigned char *)at;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* c-blosc 1.x README_CHUNK_FORMAT: version, version of the codec, flags, itemsize, nbytes, blocksize, cbytes.
 * zlib inside of it is decoded sooner in another way. */
static int is_blosc(const char *src, size_t nbytes, size_t wanted)
{
    if (nbytes < BLOSC_HEADER_NBYTES || src[0] != 2) return 0;
    if (little(src + 4) != wanted || little(src + 12) != nbytes) return 0;
    return (unsigned char)src[2] >> 5 != 3 || wanted < BLOSC_LEAST_INFLATED;
}

/* RFC 8878, 3.1.1.1: a frame that says how long it is, and bears no checksum, of which a part would not be checked. */
static int is_plain_zstd(const char *src, size_t nbytes, size_t wanted)
{
    static const size_t dictionary_nbytes[] = {0, 1, 2, 4}, length_nbytes[] = {0, 2, 4, 8};
    if (nbytes < 18 || little(src) != 0xFD2FB528) return 0;
    unsigned descriptor = (unsigned char)src[4], is_single = descriptor >> 5 & 1;
    size_t length = is_single && !(descriptor >> 6) ? 1 : length_nbytes[descriptor >> 6];
    const unsigned char *at = (const unsigned char *)src + 5 + !is_single + dictionary_nbytes[descriptor & 3];
    uint64_t found = length == 2 ? 256 : 0;
    for (size_t i = 0; i < length; i++) found += (uint64_t)at[i] << 8 * i;
    return length && !(descriptor & 4) && found == wanted;
}

static int decode_zstd_part(const job_t *job, void *context, const char *src, size_t nbytes, char *dst, size_t end)
{
    in_buffer_t in = {src, nbytes, 0};
    out_buffer_t out = {dst, end, 0};
    ((restart_zstd_t *)job->restart)(context);
    while (out.pos < end) {
        size_t before = in.pos + out.pos, left = ((stream_zstd_t *)job->decode_part)(context, &out, &in);
        if (left > (size_t)-ZSTD_ERRORS || in.pos + out.pos == before) return 0;
    }
    return 1;
}

static int decode_blosc_part(const job_t *job, const char *src, char *dst, span_t span)
{
    int64_t itemsize = (unsigned char)src[3];
    if (!itemsize || job->chunk_nbytes % itemsize) return 0;
    int64_t first = span.first / itemsize, n = (span.end + itemsize - 1) / itemsize - first;
    return ((items_of_blosc_t *)job->decode_part)(src, (int)first, (int)n, dst + first * itemsize) == n * itemsize;
}

/* Decode what is wanted of a chunk to its place in `dst`; 0 if that is most of it, or cannot be done. */
static int decode_part(const job_t *job, void *context, const char *src, size_t nbytes, char *dst, span_t span)
{
    size_t wanted = (size_t)job->chunk_nbytes;
    int64_t enough = job->chunk_nbytes / 8 * 7;
    if (!job->decode_part || job->chunk_nbytes < LEAST_PARTED_NBYTES || job->chunk_nbytes > INT32_MAX) return 0;
    switch (job->codec) {
    case ZSTD:
        return job->chunk_nbytes - span.end >= ZSTD_BLOCK_NBYTES && is_plain_zstd(src, nbytes, wanted) &&
               decode_zstd_part(job, context, src, nbytes, dst, (size_t)span.end);
    case BLOSC:
        return span.end - span.first <= enough && is_blosc(src, nbytes, wanted) && decode_blosc_part(job, src, dst, span);
    case LZ4:
        return span.end <= enough && nbytes > 4 && nbytes <= INT32_MAX && little(src) == wanted &&
               ((part_of_lz4_t *)job->decode_part)(
                   src + 4, dst, (int)nbytes - 4, (int)span.end, (int)wanted) >= span.end;
    default:
        return 0;
    }
}

static int decode_chunk(const job_t *job, void *context, const char *src, size_t nbytes, char *dst)
{
    size_t wanted = (size_t)job->chunk_nbytes, used = 0, found = 0;
    switch (job->codec) {
    case ZSTD:
        return ((decode_zstd_t *)job->decode)(context, dst, wanted, src, nbytes) == wanted;
    case BLOSC:
        return is_blosc(src, nbytes, wanted) &&
               ((decode_blosc_t *)job->decode)(src, dst, wanted, 1) == (int)wanted;
    case LZ4: /* as numcodecs frames it: the length first */
        return nbytes > 4 && nbytes <= INT32_MAX && wanted <= INT32_MAX && little(src) == wanted &&
               ((decode_lz4_t *)job->decode)(src + 4, dst, (int)nbytes - 4, (int)wanted) == (int)wanted;
    default:
        return ((inflate_t *)job->decode)(context, src, nbytes, dst, wanted, &used, &found) == 0 &&
               used == nbytes && found == wanted;
    }
}

static void copy_run(char *dst, const char *src, size_t nbytes)
{
    if (nbytes == 64)
        memcpy(dst, src, 64); /* of known length: no call */
    else
        memcpy(dst, src, nbytes);
}

#define COPY_ELEMENTS(nbytes) \
    for (int64_t i = 0; i < n; i++) memcpy(dst + i * to, src + i * from, nbytes)

static void copy_elements(char *dst, const char *src, int64_t n, int64_t from, int64_t to, int64_t itemsize)
{
    switch (itemsize) {
    case 1: COPY_ELEMENTS(1); break;
    case 2: COPY_ELEMENTS(2); break;
    case 4: COPY_ELEMENTS(4); break;
    case 8: COPY_ELEMENTS(8); break;
    default: COPY_ELEMENTS((size_t)itemsize);
    }
}

typedef struct { int64_t extent, from, to; } axis_t;

static void place(char *dst, const char *src, const axis_t *axis, int64_t n_axes, int64_t itemsize)
{
    if (n_axes > 1) {
        for (int64_t i = 0; i < axis->extent; i++)
            place(dst + i * axis->to, src + i * axis->from, axis + 1, n_axes - 1, itemsize);
    } else if (axis->from == itemsize && axis->to == itemsize) {
        copy_run(dst, src, (size_t)(axis->extent * itemsize));
    } else {
        copy_elements(dst, src, axis->extent, axis->from, axis->to, itemsize);
    }
}

/* Axes that are one in memory, here and there, are joined: rows get longer. */
static void place_box(const job_t *job, const char *chunk, int64_t in_at, int64_t out_at, const int64_t *extent)
{
    axis_t axes[MOST_AXES];
    int64_t n = 0;
    for (int64_t i = 0; i < job->ndim; i++) {
        axis_t axis = {extent[i], job->in_strides[i], job->out_strides[i]};
        if (axis.extent == 0) return;
        if (axis.extent == 1) continue;
        if (n && axes[n - 1].from == axis.from * axis.extent && axes[n - 1].to == axis.to * axis.extent)
            axis.extent *= axes[--n].extent;
        axes[n++] = axis;
    }
    if (!n) axes[n++] = (axis_t){1, job->itemsize, job->itemsize};
    place(job->out + out_at, chunk + in_at, axes, n, job->itemsize);
}

static span_t wanted_span(const job_t *job, const rows_t *rows, int64_t row)
{
    span_t span = {job->chunk_nbytes, 0};
    for (int64_t box = rows->first_box[row]; box < rows->first_box[row + 1]; box++) {
        const int64_t *extent = rows->extent + box * job->ndim;
        int64_t first = rows->in_at[box], end = first + job->itemsize;
        for (int64_t i = 0; i < job->ndim; i++) end += (extent[i] - 1) * job->in_strides[i];
        if (first < span.first) span.first = first;
        if (end > span.end) span.end = end;
    }
    return span;
}

static int treat_row(const job_t *job, const rows_t *rows, int64_t row, void *context, char *scratch)
{
    const char *chunk = rows->src[row];
    int64_t nbytes = rows->nbytes[row], box = rows->first_box[row], end = rows->first_box[row + 1];
    if (!chunk || nbytes < 0 || (job->codec == RAW && nbytes != job->chunk_nbytes)) return 0;
    if (job->codec != RAW) {
        char *dst = rows->direct[row] ? job->out + rows->out_at[box] : scratch;
        if ((rows->direct[row] || !decode_part(job, context, chunk, (size_t)nbytes, dst, wanted_span(job, rows, row))) &&
            !decode_chunk(job, context, chunk, (size_t)nbytes, dst))
            return 0;
        chunk = dst;
    } else if (rows->direct[row]) {
        memcpy(job->out + rows->out_at[box], chunk, (size_t)nbytes);
    }
    if (!rows->direct[row])
        for (; box < end; box++)
            place_box(job, chunk, rows->in_at[box], rows->out_at[box], rows->extent + box * job->ndim);
    return 1;
}

/* Rows that are left to be taken, by any thread. */
typedef struct {
    const job_t *job;
    const rows_t *rows;
    int64_t end;
    atomic_llong next, n_left;
} work_t;

typedef struct { work_t *work; char *scratch; } lane_t;

static void *run_lane(void *argument)
{
    work_t *work = ((lane_t *)argument)->work;
    const job_t *job = work->job;
    void *context = job->make_context ? ((make_t *)job->make_context)() : NULL;
    int is_able = context || !job->make_context;
    int64_t row;
    while ((row = atomic_fetch_add(&work->next, 1)) < work->end) {
        int is_left = !is_able || !treat_row(job, work->rows, row, context, ((lane_t *)argument)->scratch);
        work->rows->left[row] = (uint8_t)is_left;
        if (is_left) atomic_fetch_add(&work->n_left, 1);
    }
    if (context) ((free_t *)job->free_context)(context);
    return NULL;
}

/* Decode and place rows [row, end) on up to n_threads threads, each with chunk_nbytes of scratch; return how many are
 * left. The threads live for this call: that takes 20 us each, and none of them ever waits for Python. */
int64_t gpuzarr_place_rows(const job_t *job, const rows_t *rows, int64_t row, int64_t end, char *scratch, int64_t n_threads)
{
    pthread_t threads[MOST_THREADS];
    lane_t lanes[MOST_THREADS];
    work_t work = {job, rows, end, row, 0};
    sigset_t all, before;
    int64_t n = 0;
    if (n_threads > end - row) n_threads = end - row;
    if (n_threads > MOST_THREADS) n_threads = MOST_THREADS;
    if (n_threads > 1) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for Python's threads */
        for (; n < n_threads - 1; n++) {
            lanes[n] = (lane_t){&work, scratch ? scratch + (n + 1) * job->chunk_nbytes : NULL};
            if (pthread_create(&threads[n], NULL, run_lane, &lanes[n])) break;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    run_lane(&(lane_t){&work, scratch});
    while (n > 0) pthread_join(threads[--n], NULL);
    return work.n_left;
}

/* Read what is in memory; without a way to ask for that, read. */
static ssize_t read_cached(int file, char *to, int64_t nbytes, int64_t offset)
{
#ifdef RWF_NOWAIT
    struct iovec room = {to, (size_t)nbytes};
    return preadv2(file, &room, 1, offset, RWF_NOWAIT);
#else
    return pread(file, to, (size_t)nbytes, offset);
#endif
}

/* Return the length of a file that has been read whole; -1 if it does not exist, -2 if it has to be read otherwise. */
static int64_t read_file(const char *path, char *room, int64_t nbytes)
{
    char next;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return errno == ENOENT || errno == ENOTDIR ? -1 : -2;
    ssize_t done = read_cached(file, room, nbytes, 0);
    /* What is in memory ends with a block, unless the file ends before. */
    int is_whole = done > 0 && (done % BLOCK_NBYTES || read_cached(file, &next, 1, done) == 0);
    close(file);
    return is_whole ? done : -2;
}

/* Read files [at, n) whole, `each` bytes of `room` for each; return the first one that was left, or n.
 * `nbytes` gets their lengths, -1 for those that do not exist. Paths follow each other, each with its zero byte. */
int64_t gpuzarr_read_files(const char *paths, int64_t at, int64_t n, char *room, int64_t each, int64_t *nbytes)
{
    for (int64_t i = 0; i < at; i++) paths += strlen(paths) + 1;
    for (; at < n; at++, paths += strlen(paths) + 1) {
        int64_t found = read_file(paths, room + at * each, each);
        if (found == -2) break;
        nbytes[at] = found;
    }
    return at;
}

/* Read ranges [at, n) of an open file, offset and length each, side by side; return the first one that was left, or n. */
int64_t gpuzarr_read_ranges(int file, int64_t at, int64_t n, const int64_t *ranges, char *room)
{
    for (int64_t i = 0; i < at; i++) room += ranges[2 * i + 1];
    for (; at < n; at++) {
        int64_t nbytes = ranges[2 * at + 1];
        if (read_cached(file, room, nbytes, ranges[2 * at]) != nbytes) break;
        room += nbytes;
    }
    return at;
}
