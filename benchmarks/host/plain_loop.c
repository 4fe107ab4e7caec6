/* Read, decode and place the chunks of one array with plain threads.
 *
 * Called by plain_loop.py, which makes the tables, lends the memory and finds the decoders. Threads take the next
 * part that is left; each reads it into memory of its own, decodes its chunks one by one, and copies every row of a
 * chunk along the last axis to its place in the output. Where chunks follow each other there, they are decoded, or read,
 * straight into it. Nothing is planned or checked but lengths.
 */
#define _FILE_OFFSET_BITS 64
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum codec { RAW, ZSTD, BLOSC, GZIP };

typedef struct {
    int64_t n_threads, n_parts, ndim, codec, chunk_nbytes, staging_nbytes;
    int64_t in_order;             /* whether chunks are whole, and follow each other in the output */
    const char *const *paths;     /* of each part */
    const int64_t *part_offset;   /* in its file */
    const int64_t *part_nbytes;
    const int64_t *part_first;    /* first piece of each part, and the number of pieces */
    const int64_t *piece_start;   /* in its part */
    const int64_t *piece_nbytes;  /* encoded */
    const int64_t *piece_out;     /* first byte in the output */
    const int64_t *piece_extent;  /* ndim each: elements inside the array; bytes on the last axis */
    const int64_t *chunk_strides; /* bytes between elements of a decoded chunk */
    const int64_t *out_strides;
    char *out, *staging, *decoded; /* the last two: one stretch a thread */
    void *make_context, *free_context, *decode;
    atomic_llong next;
    atomic_int failed;
} job_t;

typedef struct { job_t *job; int64_t number; } lane_t;

static int decode_chunk(const job_t *job, void *context, const char *src, size_t nbytes, char *dst)
{
    size_t wanted = (size_t)job->chunk_nbytes, found = 0;
    switch (job->codec) {
    case ZSTD:
        return ((size_t (*)(void *, void *, size_t, const void *, size_t))job->decode)(
                   context, dst, wanted, src, nbytes) != wanted;
    case BLOSC:
        return ((int (*)(const void *, void *, size_t, int))job->decode)(src, dst, wanted, 1) != (int)wanted;
    default:
        return ((int (*)(void *, const void *, size_t, void *, size_t, size_t *))job->decode)(
                   context, src, nbytes, dst, wanted, &found) || found != wanted;
    }
}

static void place(const char *src, char *dst, const int64_t *extent, const int64_t *from, const int64_t *to, int64_t axes)
{
    if (axes == 1) {
        if (*extent == 64)
            memcpy(dst, src, 64); /* of known length: no call */
        else
            memcpy(dst, src, (size_t)*extent);
        return;
    }
    for (int64_t i = 0; i < *extent; i++)
        place(src + i * *from, dst + i * *to, extent + 1, from + 1, to + 1, axes - 1);
}

static int read_at(int file, char *to, int64_t nbytes, int64_t offset)
{
    return pread(file, to, (size_t)nbytes, offset) != nbytes;
}

static int run_part(const job_t *job, void *context, int64_t part, char *staging, char *decoded)
{
    int64_t nbytes = job->part_nbytes[part];
    int file = open(job->paths[part], O_RDONLY);
    if (file < 0) return 1;
    int64_t first = job->part_first[part], end = job->part_first[part + 1];
    if (job->codec == RAW && job->in_order) {
        int failed = 0;
        for (int64_t i = first; i < end && !failed; i++)
            failed = read_at(file, job->out + job->piece_out[i], job->piece_nbytes[i],
                             job->part_offset[part] + job->piece_start[i]);
        close(file);
        return failed;
    }
    int failed = read_at(file, staging, nbytes, job->part_offset[part]);
    close(file);
    if (failed) return 1;
    for (int64_t i = first; i < end; i++) {
        const char *chunk = staging + job->piece_start[i];
        if (job->in_order) {
            if (decode_chunk(job, context, chunk, (size_t)job->piece_nbytes[i], job->out + job->piece_out[i])) return 1;
            continue;
        }
        if (job->codec != RAW) {
            if (decode_chunk(job, context, chunk, (size_t)job->piece_nbytes[i], decoded)) return 1;
            chunk = decoded;
        }
        place(chunk, job->out + job->piece_out[i], job->piece_extent + i * job->ndim, job->chunk_strides,
              job->out_strides, job->ndim);
    }
    return 0;
}

static void *run_lane(void *argument)
{
    const lane_t *lane = argument;
    job_t *job = lane->job;
    char *staging = job->staging + lane->number * job->staging_nbytes;
    char *decoded = job->decoded + lane->number * job->chunk_nbytes;
    void *context = job->make_context ? ((void *(*)(void))job->make_context)() : NULL;
    int64_t part;
    while (!job->failed && (part = atomic_fetch_add(&job->next, 1)) < job->n_parts)
        if (run_part(job, context, part, staging, decoded)) job->failed = 1;
    if (context) ((void (*)(void *))job->free_context)(context);
    return NULL;
}

/* Return 0, or 1 if a file or a chunk was not as long as expected. */
int read_and_place(job_t *job)
{
    pthread_t threads[256];
    lane_t lanes[256];
    int64_t n = job->n_threads < 256 ? job->n_threads : 256;
    atomic_store(&job->next, 0);
    atomic_store(&job->failed, 0);
    for (int64_t i = 0; i < n; i++) {
        lanes[i] = (lane_t){job, i};
        if (pthread_create(&threads[i], NULL, run_lane, &lanes[i])) job->failed = 1, n = i;
    }
    for (int64_t i = 0; i < n; i++) pthread_join(threads[i], NULL);
    return job->failed;
}
