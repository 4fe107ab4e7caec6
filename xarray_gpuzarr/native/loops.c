/* Compiled loops, which read files, decode chunks and place them, many in each call, without the GIL.
 *
 * library.py loads this. The caller owns all memory, and passes addresses as integers. A function leaves whatever it cannot
 * treat, and reports it; Python then does the same work, and words the errors. Decoders are functions of the libraries that
 * Python calls, too. */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

#include "steps.h"

enum codec { RAW, ZSTD, BLOSC, LZ4, ZLIB, GZIP, N_CODECS };
enum stage { UNSHUFFLE, ACCUMULATE, TAKE_STEPS }; /* operations on a whole chunk, after its compressor */
enum { DONE, LEFT, ABSENT }; /* status of a row: placed; left to Python; missing, where the job has no fill value */
/* Instead of a length: there is no chunk or file; it is left to a call that waits for the disk, or to Python; it is decoded. */
enum { NO_FILE = -1, READ_OTHERWISE = -2, DECODED = -3 };
enum { GRABS_A_THREAD = 8, MOST_STEP = 32 }; /* how often a thread takes rows of a call; most rows that it takes at a time */
enum { VERSION_NUMBERS = 5, CRC_NBYTES = 4, ENTRY_NBYTES = 16 }; /* numbers of a file's version; lengths of a CRC, an index entry */
enum { MOST_AXES = 64, MOST_THREADS = 64, MOST_KEPT = 8 };       /* of an array; of a call; contexts kept for each codec */
enum { BLOCK_NBYTES = 512 };                /* what is cached of a file ends at a multiple of this (a sector), or with the file */
enum { LEAST_PARTED_NBYTES = 32 * 1024 };   /* of shorter chunks, all is decoded, also if less is requested */
enum { ZSTD_ERRORS = 120, ZSTD_BLOCK_NBYTES = 128 * 1024 }; /* results above -ZSTD_ERRORS, as size_t, are errors (zstd_errors.h) */
enum { BLOSC_HEADER_NBYTES = 16 };
enum { BLOSC_LEAST_INFLATED = 32 * 1024 }; /* C-Blosc decodes shorter chunks, also those of zlib */
enum { BLOSC_STORED_HEAD = BLOSC_HEADER_NBYTES + 8, HEAD_NBYTES = 32 }; /* what `unshuffle` writes before a block; room for that */
enum { BLOSC_BYTES_SHUFFLED = 1, BLOSC_SHUFFLED = 5 }; /* flags of a Blosc frame: bytes are shuffled; bytes or bits are */
enum { BLOSC_UNSPLIT = 0x10 };                         /* flag: each block is a single stream */
enum { BLOSC_NOT_INFLATED = 0xA };                     /* flags of frames that are stored, or of an unknown kind */
enum { BLOSC_OF_ZLIB = 3 };                            /* compressor in the upper three bits of the flags */
enum { READ_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK }; /* without O_NONBLOCK, opening a pipe would wait for a writer */
enum { PART_NBYTES = 8 << 20 };      /* part of a raw chunk that one thread reads at once */
enum { STREAMED_NBYTES = 16 << 20 }; /* zstd chunks of at least this length are decoded while they are read */
enum { PIECE_NBYTES = 512 * 1024 };  /* bytes of such a chunk that are read at once */
enum { PAGE_NBYTES = 4096, HUGE_NBYTES = 4 << 20 }; /* of memory: a page, and the least that is worth huge pages */
enum { ASKED_NBYTES = 32 << 20 };    /* most bytes that the disk is asked for ahead */

/* Functions of the codec libraries. */
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
typedef void free_t(void *); /* the result is ignored */

/* A piece: the elements of one chunk along one axis. */
typedef struct {
    int64_t in_at, out_at; /* offset of its first element along the axis in bytes, in the chunk and in the output */
    int64_t count;
    const int64_t *index;  /* position of each requested element in the chunk; NULL: they are evenly spaced from `in_at` on */
} piece_t;

/* An operation on a whole chunk. */
typedef struct {
    int64_t kind;
    int64_t nbytes;       /* of its result */
    int64_t elementsize;  /* for UNSHUFFLE */
    int64_t dtype, swap;  /* for ACCUMULATE: dtype of the sums; size of the numbers whose bytes are reversed then, 0: none */
    const steps_t *steps; /* taken before ACCUMULATE, or alone */
} stage_t;

/* An array, its codecs, and the output of a read. */
typedef struct {
    int64_t codec, chunk_nbytes, itemsize, ndim, n_pieces; /* chunk_nbytes, itemsize: after all stages, before `steps` */
    int64_t packed_nbytes;      /* length that the compressor decodes a chunk to, before the stages */
    int64_t n_stages;           /* operations after the compressor */
    int64_t n_checksums;        /* number of CRC-32C at the end of an encoded chunk */
    int64_t out_itemsize;
    int64_t area_nbytes;        /* length of an area of scratch, whose first HEAD_NBYTES are for `unshuffle`. A thread has one
                                   area, or two if there are stages or `inflate` */
    const int64_t *pieces;      /* three columns, each of all axes: first elements, first positions in the output, counts */
    const int64_t *first_piece; /* per axis: row of these columns in which its pieces begin */
    const int64_t *chunk_shape; /* along the axes of the output */
    const int64_t *in_strides;  /* of a decoded chunk, in bytes */
    const int64_t *every;       /* along each axis: distance between requested elements, in elements */
    const int64_t *out_strides; /* in bytes */
    char *out;
    void *decode, *make_context, *free_context;
    void *decode_part, *restart; /* decode a part of a chunk; prepare a context for that */
    void *unshuffle;            /* C-Blosc's decoder, for UNSHUFFLE and for blocks that `inflate` has decoded */
    void *inflate;              /* decodes zlib inside Blosc frames, faster than C-Blosc; NULL: there is none */
    const stage_t *stages;
    const steps_t *steps;       /* operations on elements while they are placed; NULL: they are copied */
    const int64_t *const *index; /* per axis: list of the requested elements, by their positions in their chunks. The first column
                                   of `pieces` then has positions in this list. NULL: they are evenly spaced; NULL as a whole:
                                   along all axes */
    const char *fill;            /* an element of the output, for missing chunks; NULL: these are reported as ABSENT */
} job_t;

/* Bytes of a decoded chunk, or of a shard: from `first` to before `end`. */
typedef struct { int64_t first, end; } span_t;

/* Chunks, one row each, and the boxes of the output that they fill. */
typedef struct {
    const char **src;           /* encoded */
    int64_t *nbytes;            /* NO_FILE: the chunk is missing; DECODED: `src` has its elements, ready to be placed */
    const int64_t *first_box;   /* per row: number of its first box; then the number of all boxes. NULL: each row has one box */
    const int64_t *boxes;       /* ndim piece numbers each */
    uint8_t *left;              /* result per row: DONE, LEFT or ABSENT */
    const int64_t *in_at, *out_at; /* instead of boxes: offsets of points in the chunk and in the output, in bytes. `first_box` then
                                   counts points */
    char *const *whole;         /* per row: memory for the whole decoded chunk, or NULL; NULL: no row has any */
} rows_t;

/* The files of encoded chunks: ranges of files in the order of rows, or a file for each row. */
typedef struct {
    const char *paths;      /* each with its zero byte */
    const int64_t *path_at; /* of each file: offset of its path in `paths` */
    const int64_t *version; /* VERSION_NUMBERS of each file, which it must have; NULL: any version */
    const int64_t *file;    /* per row: the number of its file */
    const int64_t *offset;  /* per row: its first byte; NULL: each row is a file */
    char *room;             /* memory for encoded chunks, room_nbytes for each thread; NULL: threads allocate it */
    int64_t room_nbytes, max_gap_nbytes;
    int64_t most_nbytes; /* if each row is a file: a longer one holds no chunk */
    int64_t waits;          /* whether to wait for the disk; then only rows that an earlier call has left are read */
    int64_t n_read;         /* result: number of bytes that were read */
    int64_t is_cold;        /* result: whether rows were left and requested from the disk: they are not in the page cache */
} files_t;

/* The file of a row whose parts several threads read, all through one descriptor, so that they read one version. */
typedef struct {
    int64_t n_left; /* number of parts that have not been read */
    int file;       /* descriptor; NO_FILE: not opened yet, or it cannot be opened */
} shared_file_t;

/* The rows of a call, of which threads take one or some at a time, or parts of one. */
typedef struct {
    const job_t *job;
    const rows_t *rows;
    const files_t *files; /* NULL if `src` is set for all rows */
    int64_t n_parts;      /* number of parts of each row, which threads take one by one */
    int64_t first_row;
    shared_file_t *shared_files; /* of each row from `first_row` on; NULL: rows have one part, or their files a version */
    pthread_mutex_t opening;     /* held while a shared file is opened or closed */
    int64_t end_row;
    int64_t end, step;           /* number after that of the last part; parts that a thread takes at a time */
    atomic_llong next, n_read;   /* the part that is taken next; bytes that were read */
    atomic_int is_cold;      /* whether a range was not in the page cache; all further rows are left to a call that waits */
    atomic_llong asked;      /* the disk has been asked for the rows before this one */
    atomic_int is_changed;   /* whether a file has another version */
} work_t;

/* A lane: what one thread works with. */
typedef struct {
    work_t *work;
    char *scratch, *room; /* NULL if Python passed none, see `own_memory` */
    int file;             /* descriptor of file `number`; -1: none is open */
    int64_t number;
    char *own[2];         /* scratch and room that the lane has allocated itself, or NULL */
} lane_t;

/* Return the number that four bytes in little-endian order stand for. */
static uint32_t uint32_at(const char *at)
{
    const unsigned char *b = (const unsigned char *)at;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* CRC-32C (RFC 3720, appendix B.4), by tables for eight bytes at a time, or by the processor's own instruction. */
enum { STRIPE_NBYTES = 1024 }; /* length of a stripe, see `crc_by_machine` */
static uint32_t crc_tables[8][256], crc_stripe[4][256]; /* crc_stripe: by position and value of a CRC's byte, see `behind_stripe` */

__attribute__((constructor)) static void make_crc_tables(void)
{
    uint32_t bits[32];
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
        crc_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = crc_tables[table - 1][byte];
            crc_tables[table][byte] = before >> 8 ^ crc_tables[0][before & 255];
        }
    for (int bit = 0; bit < 32; bit++) { /* each bit of a CRC, extended by STRIPE_NBYTES zero bytes */
        bits[bit] = UINT32_C(1) << bit;
        for (int i = 0; i < STRIPE_NBYTES; i++) bits[bit] = bits[bit] >> 8 ^ crc_tables[0][bits[bit] & 255];
    }
    for (int position = 0; position < 4; position++) /* of a byte in a CRC */
        for (int byte = 0; byte < 256; byte++)
            for (int bit = 0; bit < 8; bit++)
                if (byte & 1 << bit) crc_stripe[position][byte] ^= bits[position * 8 + bit];
}

/* Return a CRC extended by bytes; it is inverted before the first byte and after the last one, here by the caller. */
static uint32_t crc_by_tables(uint32_t crc, const char *at, size_t nbytes)
{
    for (; nbytes >= 8; nbytes -= 8, at += 8) {
        uint32_t low = uint32_at(at) ^ crc, high = uint32_at(at + 4);
        crc = 0;
        for (int i = 0; i < 4; i++) crc ^= crc_tables[7 - i][low >> 8 * i & 255] ^ crc_tables[3 - i][high >> 8 * i & 255];
    }
    for (; nbytes; nbytes--) crc = crc >> 8 ^ crc_tables[0][(crc ^ (unsigned char)*at++) & 255];
    return crc;
}

#ifdef __x86_64__
#if defined(__clang_major__) && __clang_major__ >= 14
#define CRC_MACHINE __attribute__((target("crc32")))
#else
#define CRC_MACHINE __attribute__((target("sse4.2")))
#endif

/* Return a CRC extended by STRIPE_NBYTES zero bytes. */
static uint32_t behind_stripe(uint32_t crc)
{
    return crc_stripe[0][crc & 255] ^ crc_stripe[1][crc >> 8 & 255] ^ crc_stripe[2][crc >> 16 & 255] ^ crc_stripe[3][crc >> 24];
}

/* As `crc_by_tables`. Three neighbouring stripes are computed at once, since the instruction takes three cycles, and one can
 * begin in each cycle. */
CRC_MACHINE static uint32_t crc_by_machine(uint32_t crc, const char *at, size_t nbytes)
{
    uint64_t word[3], wide[3];
    for (; nbytes >= 3 * STRIPE_NBYTES; nbytes -= 3 * STRIPE_NBYTES, at += 3 * STRIPE_NBYTES) {
        wide[0] = crc, wide[1] = wide[2] = 0;
        for (int i = 0; i < STRIPE_NBYTES; i += 8)
            for (int stripe = 0; stripe < 3; stripe++) {
                memcpy(word + stripe, at + stripe * STRIPE_NBYTES + i, 8);
                wide[stripe] = __builtin_ia32_crc32di(wide[stripe], word[stripe]);
            }
        crc = behind_stripe(behind_stripe((uint32_t)wide[0]) ^ (uint32_t)wide[1]) ^ (uint32_t)wide[2];
    }
    for (; nbytes >= 8; nbytes -= 8, at += 8) {
        memcpy(word, at, 8);
        crc = (uint32_t)__builtin_ia32_crc32di(crc, *word);
    }
    for (; nbytes; nbytes--) crc = __builtin_ia32_crc32qi(crc, (unsigned char)*at++);
    return crc;
}
#endif

/* Return the CRC-32C of bytes. */
uint32_t gpuzarr_crc32c(const char *at, int64_t nbytes)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) return ~crc_by_machine(~0u, at, (size_t)nbytes);
#endif
    return ~crc_by_tables(~0u, at, (size_t)nbytes);
}

/* Whether bytes are a Blosc frame that decodes to `decoded_nbytes` bytes. Its header, by README_CHUNK_FORMAT of c-blosc 1.x:
 * version of the format, which is 2, version of the codec, flags, itemsize, nbytes, blocksize, cbytes. C-Blosc counts in int,
 * where 4 GiB - 1 is -1, an error. */
static int is_blosc(const char *src, size_t nbytes, size_t decoded_nbytes)
{
    if (nbytes < BLOSC_HEADER_NBYTES || decoded_nbytes > INT32_MAX || src[0] != 2) return 0;
    if (uint32_at(src + 4) != decoded_nbytes || uint32_at(src + 12) < BLOSC_HEADER_NBYTES) return 0;
    return uint32_at(src + 12) <= nbytes; /* a frame may be shorter than the chunk: some writers leave bytes after it */
}

/* Whether bytes begin a zstd frame that declares to decode to `decoded_nbytes` bytes and has no checksum (RFC 8878, 3.1.1.1).
 * Decoding a part would not verify a checksum. */
static int is_plain_zstd(const char *src, size_t nbytes, size_t decoded_nbytes)
{
    static const size_t dictionary_nbytes[] = {0, 1, 2, 4}, length_nbytes[] = {0, 2, 4, 8};
    if (nbytes < 18 || uint32_at(src) != 0xFD2FB528) return 0; /* length of the longest header; the magic number */
    unsigned descriptor = (unsigned char)src[4], is_single = descriptor >> 5 & 1, has_checksum = descriptor >> 2 & 1;
    size_t field_nbytes = is_single && !(descriptor >> 6) ? 1 : length_nbytes[descriptor >> 6];
    /* before the field: magic number, descriptor, window (unless there is a single segment), dictionary */
    const unsigned char *field = (const unsigned char *)src + 5 + !is_single + dictionary_nbytes[descriptor & 3];
    uint64_t declared_nbytes = field_nbytes == 2 ? 256 : 0; /* a field of two bytes counts from 256 */
    for (size_t i = 0; i < field_nbytes; i++) declared_nbytes += (uint64_t)field[i] << 8 * i;
    return field_nbytes && !has_checksum && declared_nbytes == decoded_nbytes;
}

/* Decode a zstd frame up to byte `end`. Return 0 after a failure. */
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

/* Decode the requested bytes of a Blosc frame. Return 0 after a failure. */
static int decode_blosc_part(const job_t *job, const char *src, char *dst, span_t span)
{
    int64_t itemsize = (unsigned char)src[3];
    if (!itemsize || job->chunk_nbytes % itemsize) return 0;
    int64_t first = span.first / itemsize, n = (span.end + itemsize - 1) / itemsize - first;
    return ((items_of_blosc_t *)job->decode_part)(src, (int)first, (int)n, dst + first * itemsize) == n * itemsize;
}

/* Unshuffle by C-Blosc, which has the fastest code for it: a header is written before `src`, which so becomes a frame of one
 * uncompressed block. `flags` say what is shuffled. Return 0 after a failure. */
static int unshuffle(const job_t *job, int flags, int typesize, char *src, char *dst, int64_t nbytes)
{
    uint32_t n = (uint32_t)nbytes;
    /* nbytes, blocksize, cbytes; offset of the block, which begins with the length of its stream; this length */
    uint32_t lengths[] = {n, n, BLOSC_STORED_HEAD + n, BLOSC_STORED_HEAD - 4, n};
    unsigned char *at = (unsigned char *)src - BLOSC_STORED_HEAD;
    at[0] = 2, at[1] = 1, at[2] = (unsigned char)(flags | BLOSC_UNSPLIT), at[3] = (unsigned char)typesize;
    for (int i = 0; i < 20; i++) at[4 + i] = (unsigned char)(lengths[i / 4] >> 8 * (i % 4));
    return ((decode_blosc_t *)job->unshuffle)(at, dst, n, 1) == (int)n;
}

/* Decode the n zlib streams of a Blosc block, which is at `at` in a frame that ends at `end`. Each stream follows its length.
 * Return 0 after a failure. */
static int inflate_block(const job_t *job, void *context, const char *src, size_t end, size_t at, char *dst, size_t length, size_t n)
{
    size_t step = length / n, used = 0, found = step;
    if (length % n) return 0;
    for (char *to = dst; to < dst + length; to += step) {
        if (at + 4 > end) return 0;
        size_t nbytes = uint32_at(src + at);
        at += 4;
        if (!nbytes || nbytes > step || nbytes > end - at) return 0;
        if (nbytes == step) /* the stream is stored as it is */
            memcpy(to, src + at, step);
        else if (((inflate_t *)job->inflate)(context, src + at, nbytes, to, step, &used, &found) || found != step)
            return 0;
        at += nbytes;
    }
    return 1;
}

/* Decode the blocks of a Blosc frame of zlib streams that hold the requested bytes, by libdeflate, which is faster than the
 * zlib of C-Blosc. `block` is scratch for one block. Return 0 after a failure. */
static int inflate_blosc(const job_t *job, void *context, const char *src, char *dst, char *block, span_t span)
{
    size_t whole = (size_t)job->packed_nbytes, end = uint32_at(src + 12), length = uint32_at(src + 8);
    int flags = (unsigned char)src[2], typesize = (unsigned char)src[3], shuffled = flags & BLOSC_SHUFFLED;
    /* the header is followed by the offset of each block, in four bytes */
    if (!length || length > whole || !typesize || BLOSC_HEADER_NBYTES + 4 * ((whole - 1) / length + 1) > end) return 0;
    /* C-Blosc splits a block into a stream for each byte of an element, except long elements, short streams and the last block. */
    int is_split = !(flags & BLOSC_UNSPLIT) && typesize <= 16 && length / (size_t)typesize >= 128;
    size_t splits = is_split ? (size_t)typesize : 1;
    for (size_t first = 0; first < whole; first += length) {
        size_t n = whole - first < length ? whole - first : length;
        if ((int64_t)(first + n) <= span.first || (int64_t)first >= span.end) continue;
        char *to = shuffled ? block : dst + first;
        size_t at = uint32_at(src + BLOSC_HEADER_NBYTES + 4 * (first / length));
        if (!inflate_block(job, context, src, end, at, to, n, n == length ? splits : 1)) return 0;
        if (shuffled && !unshuffle(job, shuffled, typesize, to, dst + first, (int64_t)n)) return 0;
    }
    return 1;
}

/* Whether a chunk is a Blosc frame that `inflate_blosc` decodes. */
static int is_inflated(const job_t *job, const char *src, size_t nbytes, size_t decoded_nbytes)
{
    if (!job->inflate || decoded_nbytes < BLOSC_LEAST_INFLATED || !is_blosc(src, nbytes, decoded_nbytes)) return 0;
    if (src[1] != 1) return 0; /* version of the codec */
    return (unsigned char)src[2] >> 5 == BLOSC_OF_ZLIB && !(src[2] & BLOSC_NOT_INFLATED);
}

/* Decode the requested part of a chunk to its place in `dst`. Return 0 if that would save too little, or if the part cannot be
 * decoded alone. Zstd and LZ4 are decoded from the first byte to the end of the part, Blosc by elements or blocks. */
static int decode_part(const job_t *job, void *context, const char *src, size_t nbytes, char *dst, char *block, span_t span)
{
    size_t decoded_nbytes = (size_t)job->chunk_nbytes; /* without stages, the compressor decodes to the chunk itself */
    int64_t most_nbytes = job->chunk_nbytes / 8 * 7;   /* decoding a longer part would save too little */
    if (!job->decode_part || job->n_stages || job->chunk_nbytes < LEAST_PARTED_NBYTES || job->chunk_nbytes > INT32_MAX) return 0;
    switch (job->codec) {
    case ZSTD:
        return job->chunk_nbytes - span.end >= ZSTD_BLOCK_NBYTES && is_plain_zstd(src, nbytes, decoded_nbytes) &&
               decode_zstd_part(job, context, src, nbytes, dst, (size_t)span.end);
    case BLOSC:
        if (is_inflated(job, src, nbytes, decoded_nbytes)) return inflate_blosc(job, context, src, dst, block, span);
        return span.end - span.first <= most_nbytes && is_blosc(src, nbytes, decoded_nbytes) &&
               decode_blosc_part(job, src, dst, span);
    case LZ4: /* numcodecs writes the length in front */
        return span.end <= most_nbytes && nbytes > 4 && nbytes <= INT32_MAX && uint32_at(src) == decoded_nbytes &&
               ((part_of_lz4_t *)job->decode_part)(
                   src + 4, dst, (int)nbytes - 4, (int)span.end, (int)decoded_nbytes) >= span.end;
    default:
        return 0;
    }
}

/* Decode what a compressor encoded, all of it. `block` is scratch for a block of Blosc. Return 0 after a failure. */
static int decode_chunk(const job_t *job, void *context, const char *src, size_t nbytes, char *dst, char *block)
{
    size_t decoded_nbytes = (size_t)job->packed_nbytes, used = 0, found = 0;
    switch (job->codec) {
    case ZSTD:
        return ((decode_zstd_t *)job->decode)(context, dst, decoded_nbytes, src, nbytes) == decoded_nbytes;
    case BLOSC:
        if (is_inflated(job, src, nbytes, decoded_nbytes))
            return inflate_blosc(job, context, src, dst, block, (span_t){0, job->packed_nbytes});
        return is_blosc(src, nbytes, decoded_nbytes) &&
               ((decode_blosc_t *)job->decode)(src, dst, decoded_nbytes, 1) == (int)decoded_nbytes;
    case LZ4: /* numcodecs writes the length in front */
        return nbytes > 4 && nbytes <= INT32_MAX && decoded_nbytes <= INT32_MAX && uint32_at(src) == decoded_nbytes &&
               ((decode_lz4_t *)job->decode)(src + 4, dst, (int)nbytes - 4, (int)decoded_nbytes) == (int)decoded_nbytes;
    case ZLIB:
    case GZIP:
        return ((inflate_t *)job->decode)(context, src, nbytes, dst, decoded_nbytes, &used, &found) == 0 &&
               used == nbytes && found == decoded_nbytes;
    default:
        return 0;
    }
}

/* Carry out an operation on a whole chunk. Return 0 after a failure. */
static int take_stage(const job_t *job, const stage_t *stage, char *src, char *dst)
{
    if (stage->kind == UNSHUFFLE) return unshuffle(job, BLOSC_BYTES_SHUFFLED, (int)stage->elementsize, src, dst, stage->nbytes);
    const steps_t *steps = stage->steps;
    int64_t n = stage->nbytes / steps->out_itemsize;
    take_steps(steps, dst, (positions_t){steps->out_itemsize, NULL}, src, (positions_t){steps->in_itemsize, NULL}, n);
    if (stage->kind == ACCUMULATE) accumulate(dst, n, stage->dtype), swap_bytes(dst, stage->nbytes, stage->swap);
    return 1;
}

/* Take all stages of a chunk, from one area of scratch to the other; the last one writes to `dst` unless it is NULL. Return the
 * address of the elements; NULL after a failure. */
static const char *take_stages(const job_t *job, char *scratch, char *dst)
{
    char *from = scratch + HEAD_NBYTES, *other = from + job->area_nbytes, *to = other;
    for (int64_t i = 0; i < job->n_stages; i++) {
        if (dst && i + 1 == job->n_stages) to = dst;
        if (!take_stage(job, job->stages + i, from, to)) return NULL;
        other = from, from = to, to = other; /* the next stage goes the other way */
    }
    return from;
}

/* Copy n elements from `src` to `dst`, and carry out the job's steps on the way. */
static void convert_elements(const job_t *job, char *dst, positions_t out, const char *src, positions_t in, int64_t n)
{
    if (job->steps)
        take_steps(job->steps, dst, out, src, in, n);
    else
        copy_elements(dst, out, src, in, n, job->itemsize);
}

/* An axis of a box: number of elements, and bytes between two of them in the chunk and in the array. With an index, elements of the
 * chunk are at the multiples of `from` that it lists. */
typedef struct { int64_t extent, from, to; const int64_t *index; } axis_t;

enum { TO_ARRAY, TO_CHUNK };

/* Copy elements from a chunk to the caller's array, or from the array to a chunk. */
static void exchange(const job_t *job, char *array, char *chunk, const axis_t *axis, int64_t n_axes, int direction)
{
    positions_t in_array = {axis->to, NULL}, in_chunk = {axis->from, axis->index};
    if (n_axes > 1)
        for (int64_t i = 0; i < axis->extent; i++, array += axis->to)
            exchange(job, array, chunk + (axis->index ? axis->index[i] : i) * axis->from, axis + 1, n_axes - 1, direction);
    else if (direction == TO_ARRAY)
        convert_elements(job, array, in_array, chunk, in_chunk, axis->extent);
    else
        convert_elements(job, chunk, in_chunk, array, in_array, axis->extent);
}

/* Return the number of a row's first box or point. That of the next row is the end. */
static int64_t first_box(const rows_t *rows, int64_t row) { return rows->first_box ? rows->first_box[row] : row; }

/* Return the piece of a box along an axis. */
static piece_t piece_of(const job_t *job, const rows_t *rows, int64_t box, int64_t axis)
{
    const int64_t *piece = job->pieces + job->first_piece[axis] + rows->boxes[box * job->ndim + axis];
    const int64_t *index = job->index ? job->index[axis] : NULL;
    int64_t out_at = piece[job->n_pieces] * job->out_strides[axis];
    int64_t in_at = index ? 0 : piece[0] * job->in_strides[axis];
    return (piece_t){in_at, out_at, piece[2 * job->n_pieces], index ? index + piece[0] : NULL};
}

/* Return the address of a box in the output. */
static char *destination(const job_t *job, const rows_t *rows, int64_t box)
{
    char *at = job->out;
    for (int64_t i = 0; i < job->ndim; i++) at += piece_of(job, rows, box, i).out_at;
    return at;
}

/* Whether a whole chunk is requested, and is contiguous in the output. */
static int is_direct(const job_t *job, const rows_t *rows, int64_t row)
{
    int64_t box = first_box(rows, row), run = job->itemsize;
    if (job->steps || rows->in_at || first_box(rows, row + 1) != box + 1) return 0;
    for (int64_t i = job->ndim - 1; i >= 0; i--) {
        int64_t length = job->chunk_shape[i];
        if (piece_of(job, rows, box, i).count != length) return 0;
        if (length > 1 && (job->every[i] != 1 || job->in_strides[i] != run || job->out_strides[i] != run)) return 0;
        run *= length;
    }
    return 1;
}

/* List the axes of a box, and set `in_at` to the offset of its first element in the chunk. Return the number of axes; 0 if the box
 * has no elements. Axes that are contiguous in the chunk and in the output are merged, so that there are fewer, longer runs. */
static int64_t box_axes(const job_t *job, const rows_t *rows, int64_t box, axis_t *axes, int64_t *in_at)
{
    int64_t n = 0;
    *in_at = 0;
    for (int64_t i = 0; i < job->ndim; i++) {
        piece_t piece = piece_of(job, rows, box, i);
        *in_at += piece.in_at;
        if (piece.count == 0) return 0;
        if (piece.count == 1 && piece.index) *in_at += piece.index[0] * job->in_strides[i];
        if (piece.count == 1) continue; /* the step of a single element does not matter */
        axis_t axis = {piece.count, job->in_strides[i] * (piece.index ? 1 : job->every[i]), job->out_strides[i], piece.index};
        if (n && !axis.index && !axes[n - 1].index && axes[n - 1].from == axis.from * axis.extent &&
            axes[n - 1].to == axis.to * axis.extent) {
            n--; /* `axis` takes the place of the one before it */
            axis.extent *= axes[n].extent;
        }
        axes[n++] = axis;
    }
    if (!n) axes[n++] = (axis_t){1, job->itemsize, job->out_itemsize, NULL};
    return n;
}

/* Copy a box from a chunk to the caller's array, or from the array to the chunk. */
static void exchange_box(const job_t *job, const rows_t *rows, int64_t box, char *chunk, int direction)
{
    axis_t axes[MOST_AXES];
    int64_t in_at, n = box_axes(job, rows, box, axes, &in_at);
    if (n) exchange(job, destination(job, rows, box), chunk + in_at, axes, n, direction);
}

static void place_box(const job_t *job, const rows_t *rows, int64_t box, const char *chunk)
{
    exchange_box(job, rows, box, (char *)(uintptr_t)chunk, TO_ARRAY);
}

/* Write the fill value to all boxes or points of a missing chunk. */
static void fill_row(const job_t *job, const rows_t *rows, int64_t row)
{
    static const int64_t zeros[MOST_AXES]; /* strides by which all elements of the chunk are the fill value */
    int64_t box = first_box(rows, row), end = first_box(rows, row + 1);
    job_t filling = *job;
    filling.in_strides = zeros, filling.steps = NULL, filling.itemsize = job->out_itemsize;
    if (rows->in_at)
        convert_elements(&filling, job->out, (positions_t){1, rows->out_at + box}, job->fill, (positions_t){0, NULL}, end - box);
    else
        for (; box < end; box++) place_box(&filling, rows, box, job->fill);
}

/* Extend a span by elements that begin at `first` to `last`. */
static void widen(span_t *span, int64_t first, int64_t last, int64_t itemsize)
{
    if (first < span->first) span->first = first;
    if (last + itemsize > span->end) span->end = last + itemsize;
}

/* Return the smallest offset along an axis of the chunk at which an element of a piece begins, and, as `end`, the largest. */
static span_t span_of_piece(const job_t *job, piece_t piece, int64_t axis)
{
    int64_t stride = job->in_strides[axis];
    if (!piece.index) return (span_t){piece.in_at, piece.in_at + (piece.count - 1) * stride * job->every[axis]};
    span_t span = {INT64_MAX, 0};
    for (int64_t i = 0; i < piece.count; i++) widen(&span, piece.index[i] * stride, piece.index[i] * stride, 0);
    return span;
}

/* Return the bytes of a chunk from the first to the last element that its row requests. */
static span_t wanted_span(const job_t *job, const rows_t *rows, int64_t row)
{
    span_t span = {job->chunk_nbytes, 0};
    for (int64_t box = first_box(rows, row); box < first_box(rows, row + 1); box++) {
        int64_t first = rows->in_at ? rows->in_at[box] : 0, last = first;
        for (int64_t i = 0; !rows->in_at && i < job->ndim; i++) {
            span_t piece = span_of_piece(job, piece_of(job, rows, box, i), i);
            first += piece.first, last += piece.end;
        }
        widen(&span, first, last, job->itemsize);
    }
    return span;
}

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

/* Whether chunks are decoded while they are read. */
static int is_streamed(const work_t *work)
{
    const job_t *job = work->job;
    return work->files && job->codec == ZSTD && !job->n_checksums && job->packed_nbytes >= STREAMED_NBYTES;
}

/* Decode at least the first `enough` bytes of a zstd frame while it is read, so that it is never in memory as a whole. This waits
 * for the disk in any call. Return 0 after a failure, or if data that are decoded to their end are anything other than a single
 * frame. */
static int decode_stream(lane_t *lane, int64_t row, void *context, char *dst, int64_t enough)
{
    const work_t *work = lane->work;
    const job_t *job = work->job;
    const files_t *files = work->files;
    int64_t at = files->offset ? files->offset[row] : 0; /* if each row is a file, the file must end before `end` */
    int64_t end = files->offset ? at + work->rows->nbytes[row] : files->most_nbytes + 1;
    int64_t most = files->room_nbytes < PIECE_NBYTES ? files->room_nbytes : PIECE_NBYTES;
    int file = file_of(lane, row);
    in_buffer_t in = {lane->room, 0, 0};
    out_buffer_t out = {dst, (size_t)job->packed_nbytes, 0};
    size_t left = 1; /* result of zstd: 0 when a frame is complete */
    ((restart_zstd_t *)job->restart)(context);
    for (;;) {
        if (in.pos == in.size) {
            ssize_t found = at < end ? pread(file, lane->room, (size_t)(end - at < most ? end - at : most), at) : 0;
            int is_at_end = files->offset ? at == end : at < end;
            if (found <= 0) return found == 0 && !left && out.pos == out.size && is_at_end;
            /* a frame whose checksum has to be verified is decoded to its end */
            if (!out.pos && enough < job->packed_nbytes && !is_plain_zstd(lane->room, (size_t)found, out.size))
                enough = job->packed_nbytes;
            at += found, in.size = (size_t)found, in.pos = 0;
            atomic_fetch_add(&lane->work->n_read, found);
        }
        size_t before = in.pos + out.pos;
        if (left) left = ((stream_zstd_t *)job->decode_part)(context, &out, &in);
        if (left > (size_t)-ZSTD_ERRORS || in.pos + out.pos == before) return 0;
        if (enough < job->packed_nbytes && (int64_t)out.pos >= enough) return 1;
    }
}

/* Whether encoded chunks have the same bytes as the output. */
static int is_copied(const job_t *job)
{
    return job->codec == RAW && !job->n_stages && !job->n_checksums && !job->steps;
}

/* Return the number of bytes of scratch that a thread needs. */
static int64_t scratch_nbytes(const job_t *job) { return job->area_nbytes * (job->n_stages || job->inflate ? 2 : 1); }

/* Ask for huge pages for long memory, as NumPy does. Without them, each 4 KiB cost a page fault. Return the memory. */
static void *in_huge_pages(void *memory, int64_t nbytes)
{
#ifdef MADV_HUGEPAGE
    uintptr_t first = ((uintptr_t)memory + PAGE_NBYTES - 1) & ~(uintptr_t)(PAGE_NBYTES - 1);
    if (memory && nbytes >= HUGE_NBYTES) madvise((void *)first, (size_t)(nbytes - PAGE_NBYTES), MADV_HUGEPAGE);
#else
    (void)nbytes;
#endif
    return memory;
}

/* Return memory of a lane; NULL if there is none. Python does not pass long memory: the lane allocates it when it is needed. */
static char *own_memory(char **memory, char **own, int64_t nbytes)
{
    if (*memory) return *memory;
    *memory = *own = in_huge_pages(malloc((size_t)nbytes), nbytes);
    if (!*memory) errno = ENOMEM;
    return *memory;
}

static char *scratch_of(lane_t *lane) { return own_memory(&lane->scratch, &lane->own[0], scratch_nbytes(lane->work->job)); }

/* Return memory for the encoded chunks that a lane reads at once; NULL if there is none. */
static char *room_of(lane_t *lane)
{
    int64_t nbytes = lane->work->files->room_nbytes;
    return own_memory(&lane->room, &lane->own[1], is_streamed(lane->work) && nbytes > PIECE_NBYTES ? PIECE_NBYTES : nbytes);
}

/* Return the place of a raw chunk in the output if it can be read straight to it; else NULL. */
static char *straight_to(const work_t *work, int64_t row)
{
    int is_run = is_copied(work->job) && is_direct(work->job, work->rows, row);
    return is_run ? destination(work->job, work->rows, first_box(work->rows, row)) : NULL;
}

/* Decode a chunk to `dst`, or to scratch if that is NULL. Return the address of its elements; NULL after a failure. */
static const char *decode_row(lane_t *lane, int64_t row, size_t nbytes, void *context, char *dst)
{
    const job_t *job = lane->work->job;
    const rows_t *rows = lane->work->rows;
    const char *chunk = rows->src[row];
    if (job->codec == RAW && !job->n_stages) /* it may have been read straight to `dst` */
        return dst && dst != chunk ? memcpy(dst, chunk, nbytes) : chunk;
    int goes_straight = dst && !job->n_stages && !job->inflate; /* `inflate` needs scratch for a block */
    char *scratch = goes_straight ? NULL : scratch_of(lane), *block = scratch ? scratch + job->area_nbytes + HEAD_NBYTES : NULL;
    if (!goes_straight && !scratch) return NULL;
    char *to = dst && !job->n_stages ? dst : scratch + HEAD_NBYTES;
    if (job->codec == RAW)
        memcpy(to, chunk, nbytes);
    else if (is_streamed(lane->work)) {
        int64_t enough = dst || job->n_stages ? job->packed_nbytes : wanted_span(job, rows, row).end;
        if (!decode_stream(lane, row, context, to, enough)) return NULL;
    } else {
        int is_decoded = !dst && decode_part(job, context, chunk, nbytes, to, block, wanted_span(job, rows, row));
        if (!is_decoded && !decode_chunk(job, context, chunk, nbytes, to, block)) return NULL;
    }
    return job->n_stages ? take_stages(job, scratch, dst) : to;
}

/* Check the checksums of a chunk. Return its length without them; -1 if one is wrong, or a raw chunk has a wrong length. */
static int64_t without_checksums(const job_t *job, const char *chunk, int64_t nbytes)
{
    for (int64_t i = 0; i < job->n_checksums; i++) {
        nbytes -= CRC_NBYTES;
        if (nbytes < 0 || gpuzarr_crc32c(chunk, nbytes) != uint32_at(chunk + nbytes)) return -1;
    }
    return job->codec == RAW && nbytes != job->packed_nbytes ? -1 : nbytes;
}

/* Decode and place a chunk that was read. Return 0 if it has to be left. */
static int place_row(lane_t *lane, int64_t row, void *context)
{
    const job_t *job = lane->work->job;
    const rows_t *rows = lane->work->rows;
    int64_t nbytes = rows->nbytes[row], box = first_box(rows, row), end = first_box(rows, row + 1);
    if (!rows->src[row]) return 0;
    char *dst = NULL, *whole = rows->whole ? rows->whole[row] : NULL;
    const char *chunk = rows->src[row];
    if (nbytes != DECODED) {
        nbytes = without_checksums(job, chunk, nbytes);
        if (nbytes < 0) return 0;
        if (!whole && is_direct(job, rows, row)) dst = destination(job, rows, box);
        chunk = decode_row(lane, row, (size_t)nbytes, context, whole ? whole : dst);
    }
    if (!chunk) return 0;
    if (dst) return 1; /* it was decoded to its place */
    if (rows->in_at)
        convert_elements(job, job->out, (positions_t){1, rows->out_at + box}, chunk, (positions_t){1, rows->in_at + box}, end - box);
    else
        for (; box < end; box++) place_box(job, rows, box, chunk);
    return 1;
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

/* Whether at most half of a raw chunk is requested. If so, set `span` to the range of all requested bytes; else `span` means
 * nothing. */
static int is_read_in_part(const work_t *work, int64_t row, span_t *span)
{
    const job_t *job = work->job;
    if (work->rows->whole && work->rows->whole[row]) return 0;
    if (job->codec != RAW || job->n_stages || job->n_checksums || job->packed_nbytes < LEAST_PARTED_NBYTES) return 0;
    *span = wanted_span(job, work->rows, row);
    return span->first < span->end && span->end - span->first <= job->packed_nbytes / 2;
}

/* Bytes of a file that are read at once: of a part of one row, or of whole rows before `stop`. */
typedef struct {
    int64_t stop, first, last; /* a row, and the offsets in the file at which the bytes begin and end */
    int64_t part_first; /* of a part: its offset in the chunk; -1 for whole rows */
    char *straight;     /* place in the output that the bytes are read straight to, or NULL */
} run_t;

/* Return the bytes that are read at once from rows [row, end), the first of which is stored. These are as many rows as form one
 * range of a file that fits in `room`, or that is contiguous in the output. */
static run_t run_of(const work_t *work, int64_t row, int64_t end)
{
    const files_t *files = work->files;
    const int64_t *offset = files->offset, *nbytes = work->rows->nbytes;
    int64_t raw_nbytes = work->job->packed_nbytes; /* of a raw chunk; others are never read in part or straight */
    span_t span;
    if (nbytes[row] == raw_nbytes && is_read_in_part(work, row, &span))
        return (run_t){row + 1, offset[row] + span.first, offset[row] + span.end, span.first, NULL};
    run_t run = {row, offset[row], offset[row], -1, nbytes[row] == raw_nbytes ? straight_to(work, row) : NULL};
    int64_t most = run.straight ? PART_NBYTES : files->room_nbytes, gap = run.straight ? 0 : files->max_gap_nbytes;
    for (; run.stop < end && nbytes[run.stop] != NO_FILE && nbytes[run.stop] != DECODED; run.stop++) {
        int64_t i = run.stop, until = offset[i] + nbytes[i];
        if (i > row && (files->file[row] != files->file[i] || offset[i] - run.last > gap || until - run.first > most)) break;
        if (i > row && run.straight && (nbytes[i] != raw_nbytes || straight_to(work, i) != run.straight + (offset[i] - run.first)))
            break;
        if (until > run.last) run.last = until;
    }
    return run;
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

/* Ask the system to read the file of a row ahead, or the requested part of it. */
static void ask_for_object(const work_t *work, int64_t row)
{
    span_t span;
    int file = open(work->files->paths + work->files->path_at[work->files->file[row]], READ_FLAGS);
    if (file < 0) return;
    if (!is_read_in_part(work, row, &span)) span = (span_t){0, work->files->room_nbytes};
    ask_for(file, span.first, span.end - span.first);
    close(file);
}

/* Ask the system to read rows from `row` on ahead, up to ASKED_NBYTES of them, so that the disk works on many at once. */
static void ask_ahead(lane_t *lane, int64_t row)
{
    work_t *work = lane->work;
    const int64_t *offset = work->files->offset, *nbytes = work->rows->nbytes;
    int64_t n = 1 + ASKED_NBYTES / (work->job->packed_nbytes + 1), end = row + n < work->end_row ? row + n : work->end_row;
    long long next = atomic_load(&work->asked);
    /* Many rows are asked for at a time, since the lane may have to open the file of later rows for that. */
    if (next - row > n / 2) return;
    while (next < end) {
        int64_t first = next > row ? next : row, is_stored = nbytes[first] != DECODED && (!offset || nbytes[first] != NO_FILE);
        run_t run = offset && is_stored ? run_of(work, first, work->end_row) : (run_t){.stop = first + 1};
        if (!atomic_compare_exchange_weak(&work->asked, &next, run.stop)) continue;
        if (is_stored && !offset)
            ask_for_object(work, first);
        else if (is_stored)
            ask_for(file_of(lane, first), run.first, run.last - run.first);
        next = run.stop;
    }
}

/* Leave rows that are not in the page cache to a call that waits for the disk, and ask for them now. */
static void note_cold(lane_t *lane, int64_t row)
{
    if (lane->work->files->waits || atomic_exchange(&lane->work->is_cold, 1)) return;
    ask_ahead(lane, row);
}

/* Read the first run of rows [row, end), or as many of its rows as are in the page cache. If there are any, return the row after
 * them, otherwise the row after the run, whose rows are left. */
static int64_t read_run(lane_t *lane, int64_t row, int64_t end)
{
    const work_t *work = lane->work;
    const rows_t *rows = work->rows;
    const int64_t *offset = work->files->offset, *nbytes = rows->nbytes;
    if (nbytes[row] == NO_FILE) return row + 1;
    run_t run = run_of(work, row, end);
    char *to = run.straight ? run.straight : room_of(lane);
    if (!to) {
        rows->src[row] = NULL;
        return row + 1;
    }
    int64_t n = run.last - run.first, most = run.straight ? PART_NBYTES : work->files->room_nbytes, next = row;
    /* a single row may be longer than the room */
    ssize_t found = n <= most ? read_range(work, file_of(lane, row), to, n, run.first) : -1;
    if (run.part_first >= 0 && found == n)
        rows->src[next++] = (const char *)((uintptr_t)to - (uintptr_t)run.part_first); /* where the chunk would begin */
    for (; run.part_first < 0 && next < run.stop && offset[next] + nbytes[next] - run.first <= found; next++)
        rows->src[next] = to + (offset[next] - run.first);
    if (next > row) {
        atomic_fetch_add(&lane->work->n_read, found);
        return next;
    }
    note_cold(lane, row); /* none of the rows was read */
    for (int64_t i = row; i < run.stop; i++) rows->src[i] = NULL;
    return run.stop;
}

/* Read the requested part of a chunk that is a file. Return the length of the file; READ_OTHERWISE if the part is not in the page
 * cache; 0 if the file has another length than a chunk or cannot be opened, or if there is no memory. */
static int64_t read_object_part(lane_t *lane, int64_t row, const char *path, span_t span)
{
    int64_t nbytes = lane->work->job->packed_nbytes, n = span.end - span.first;
    char *to = room_of(lane);
    struct stat found;
    int file = open(path, READ_FLAGS);
    int is_chunk = to && file >= 0 && !fstat(file, &found) && found.st_size == nbytes;
    int is_read = is_chunk && read_range(lane->work, file, to, n, span.first) == n;
    if (file >= 0) close(file);
    if (!is_read) return is_chunk ? READ_OTHERWISE : 0;
    atomic_fetch_add(&lane->work->n_read, n);
    lane->work->rows->src[row] = (const char *)((uintptr_t)to - (uintptr_t)span.first);
    return nbytes;
}

/* Read a chunk that is a file, or the requested part of it. Set `nbytes` of the row. Return the next row. */
static int64_t read_object(lane_t *lane, int64_t row)
{
    const files_t *files = lane->work->files;
    const rows_t *rows = lane->work->rows;
    span_t span;
    const char *path = files->paths + files->path_at[files->file[row]];
    rows->src[row] = NULL;
    int64_t found = is_read_in_part(lane->work, row, &span) ? read_object_part(lane, row, path, span) : 0;
    if (!found) {
        char *straight = straight_to(lane->work, row), *to = straight ? straight : room_of(lane);
        int64_t most = straight ? lane->work->job->packed_nbytes : files->room_nbytes;
        found = !to ? READ_OTHERWISE : read_file(lane->work, path, to, most);
        rows->src[row] = found < 0 ? NULL : to;
        if (found > 0) atomic_fetch_add(&lane->work->n_read, found);
    }
    rows->nbytes[row] = found;
    if (found == READ_OTHERWISE) note_cold(lane, row);
    return row + 1;
}

/* Open the file of a row that is decoded while it is read, and set `src` to the room that its pieces are read to. If the row is
 * a file, set its `nbytes` to 0, or to NO_FILE or READ_OTHERWISE if it cannot be opened. Return the next row. */
static int64_t open_stream(lane_t *lane, int64_t row)
{
    const rows_t *rows = lane->work->rows;
    if (lane->work->files->offset && rows->nbytes[row] == NO_FILE) return row + 1;
    int is_open = file_of(lane, row) >= 0;
    rows->src[row] = is_open ? room_of(lane) : NULL;
    if (!lane->work->files->offset) rows->nbytes[row] = is_open ? 0 : no_file();
    return row + 1;
}

/* Read as many of the rows [row, end) as are read at once. Return the row after them. */
static int64_t read_next_rows(lane_t *lane, int64_t row, int64_t end)
{
    if (!lane->work->files) return end;
    if (lane->work->rows->nbytes[row] == DECODED) return row + 1;
    if (lane->work->files->waits) ask_ahead(lane, row);
    if (is_streamed(lane->work)) return open_stream(lane, row);
    return lane->work->files->offset ? read_run(lane, row, end) : read_object(lane, row);
}

/* Decode and place a row that was read, or fill its boxes if the chunk is missing. Set the status of the row. */
static void finish_row(lane_t *lane, int64_t row, void *context)
{
    const work_t *work = lane->work;
    const rows_t *rows = work->rows;
    int is_absent = rows->nbytes[row] == NO_FILE, is_able = context || !work->job->make_context;
    rows->left[row] = DONE;
    if (is_absent && work->job->fill)
        fill_row(work->job, rows, row);
    else if (is_absent || !is_able || !place_row(lane, row, context))
        rows->left[row] = is_absent ? ABSENT : LEFT;
}

/* Return the descriptor through which all threads read the parts of a row; -1 if the file cannot be opened. */
static int open_shared_file(work_t *work, int64_t row)
{
    shared_file_t *shared = work->shared_files + (row - work->first_row);
    const files_t *files = work->files;
    pthread_mutex_lock(&work->opening);
    if (shared->file < 0) shared->file = open(files->paths + files->path_at[files->file[row]], READ_FLAGS);
    int file = shared->file;
    pthread_mutex_unlock(&work->opening);
    return file;
}

/* Count a part of a row as read. Close the file of the row after its last part. */
static void release_shared_file(work_t *work, int64_t row)
{
    if (!work->shared_files) return;
    shared_file_t *shared = work->shared_files + (row - work->first_row);
    pthread_mutex_lock(&work->opening);
    shared->n_left--;
    if (!shared->n_left && shared->file >= 0) close(shared->file);
    pthread_mutex_unlock(&work->opening);
}

/* Read a part of a raw chunk to its place. Return 0 after a failure. */
static int read_part(lane_t *lane, int64_t row, int64_t first, char *dst)
{
    const files_t *files = lane->work->files;
    const rows_t *rows = lane->work->rows;
    int64_t whole = lane->work->job->packed_nbytes, n = whole - first < PART_NBYTES ? whole - first : PART_NBYTES;
    char next;
    if ((!files || files->offset) && rows->nbytes[row] != whole) return 0;
    if (!files) return rows->src[row] && memcpy(dst + first, rows->src[row] + first, (size_t)n);
    int file = files->offset ? file_of(lane, row) : open_shared_file(lane->work, row);
    if (file < 0 || pread(file, dst + first, (size_t)n, first + (files->offset ? files->offset[row] : 0)) != n) return 0;
    atomic_fetch_add(&lane->work->n_read, n);
    /* a file that is longer than a chunk is left */
    return files->offset || first + n < whole || pread(file, &next, 1, whole) == 0;
}

/* Read a part of a row to its place in the output. A row that is not a long raw chunk, contiguous in the output, is read and placed
 * as a whole with its first part. */
static void read_and_place_part(lane_t *lane, int64_t row, int64_t part)
{
    const work_t *work = lane->work;
    const rows_t *rows = work->rows;
    int has_length = !work->files || work->files->offset; /* if each row is a file, its length is not known yet */
    int is_missing = has_length && rows->nbytes[row] == NO_FILE;
    char *dst = is_missing ? NULL : straight_to(work, row);
    if (dst && !read_part(lane, row, part * PART_NBYTES, dst)) rows->left[row] = LEFT;
    if (dst || part) return;
    read_next_rows(lane, row, row + 1);
    finish_row(lane, row, NULL);
}

/* Take an object, such as a context, out of those that were kept. Return NULL if there is none. */
static void *take_kept(_Atomic(void *) *kept, int n)
{
    void *found = NULL;
    for (int i = 0; i < n && !found; i++) found = atomic_exchange(&kept[i], NULL);
    return found;
}

/* Keep an object, such as a context, for later use. Return 0 if there is no place for it. */
static int keep(_Atomic(void *) *kept, int n, void *what)
{
    for (int i = 0; i < n; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&kept[i], &none, what)) return 1;
    }
    return 0;
}

/* Contexts for later lanes, by codec. Making one of zstd takes as long as decoding 8 KB. */
static _Atomic(void *) kept[N_CODECS][MOST_KEPT];

/* Return a context for decoding, one that was kept or a new one; NULL if the codec needs none, or there is no memory. */
static void *take_context(const job_t *job)
{
    if (!job->make_context) return NULL;
    void *context = take_kept(kept[job->codec], MOST_KEPT);
    return context ? context : ((make_t *)job->make_context)();
}

/* Keep a context for later lanes, or free it. */
static void give_context(const job_t *job, void *context)
{
    if (context && !keep(kept[job->codec], MOST_KEPT, context)) ((free_t *)job->free_context)(context);
}

/* Read, decode and place rows [row, end), except rows that are done, or left to a call that waits for the disk. */
static void read_and_place_rows(lane_t *lane, int64_t row, int64_t end, void *context)
{
    const work_t *work = lane->work;
    int waits = work->files && work->files->waits;
    while (row < end) {
        if (work->is_cold) work->rows->left[row] = LEFT;
        if (work->is_cold || (waits && work->rows->left[row] == DONE)) {
            row++;
            continue;
        }
        for (int64_t stop = read_next_rows(lane, row, end); row < stop; row++) finish_row(lane, row, context);
    }
}

/* Take rows or parts of rows, read and place them on this thread, until all have been taken. */
static void *run_lane(void *argument)
{
    lane_t *lane = argument;
    work_t *work = lane->work;
    void *context = take_context(work->job);
    int64_t part; /* number of a part among those of all rows; a row, if each has one part */
    while ((part = atomic_fetch_add(&work->next, work->step)) < work->end) {
        int64_t end = part + work->step < work->end ? part + work->step : work->end;
        if (work->n_parts > 1) {
            read_and_place_part(lane, part / work->n_parts, part % work->n_parts);
            release_shared_file(work, part / work->n_parts);
        } else {
            read_and_place_rows(lane, part, end, context);
        }
    }
    give_context(work->job, context);
    close_file(lane);
    free(lane->own[0]), free(lane->own[1]);
    return NULL;
}

/* Return lane number `i`, with its share of the memory of all threads. */
static lane_t lane_of(work_t *work, char *scratch, int64_t i)
{
    char *room = work->files && work->files->room ? work->files->room + i * work->files->room_nbytes : NULL;
    return (lane_t){work, scratch ? scratch + i * scratch_nbytes(work->job) : NULL, room, -1, 0, {NULL, NULL}};
}

/* Call `run` with each argument, on the calling thread and up to n_threads - 1 new ones, or fewer if the system starts no more.
 * Threads end with this call. Starting one takes 20 us, and none of them ever waits for the GIL. */
static void run_threads(void *(*run)(void *), void *arguments, size_t argument_nbytes, int64_t n_threads)
{
    pthread_t threads[MOST_THREADS];
    sigset_t all, before;
    int64_t n = 0;
    if (n_threads > 1) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are delivered to Python's threads */
        for (; n < n_threads - 1; n++)
            if (pthread_create(&threads[n], NULL, run, (char *)arguments + (size_t)(n + 1) * argument_nbytes)) break;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    run(arguments);
    while (n > 0) pthread_join(threads[--n], NULL);
}

/* Cut long raw chunks into parts, which threads take one by one. Return 0 if there is not enough memory. */
static int cut_rows(work_t *work, int64_t row, int64_t end)
{
    work->n_parts = is_copied(work->job) ? (work->job->packed_nbytes + PART_NBYTES - 1) / PART_NBYTES : 1;
    if (work->n_parts < 1) work->n_parts = 1;
    if (work->n_parts == 1) return 1;
    memset(work->rows->left + row, DONE, (size_t)(end - row));
    work->step = 1;
    if (!work->files || work->files->offset) return 1;
    work->first_row = row;
    work->shared_files = malloc((size_t)(end - row) * sizeof *work->shared_files);
    for (int64_t i = 0; work->shared_files && i < end - row; i++) work->shared_files[i] = (shared_file_t){work->n_parts, NO_FILE};
    return work->shared_files != NULL;
}

/* Read and place rows [row, end) on up to n_threads threads. Return the number of rows that were left. */
static int64_t run_lanes(work_t *work, int64_t row, int64_t end, char *scratch, int64_t n_threads)
{
    lane_t lanes[MOST_THREADS];
    int64_t n_left = 0;
    if (!cut_rows(work, row, end)) {
        memset(work->rows->left + row, LEFT, (size_t)(end - row));
        return end - row;
    }
    work->next = row * work->n_parts;
    work->asked = row;
    work->end_row = end;
    work->end = end * work->n_parts;
    if (n_threads > work->end - work->next) n_threads = work->end - work->next;
    if (n_threads > MOST_THREADS) n_threads = MOST_THREADS;
    if (n_threads < 1) n_threads = 1;
    for (int64_t i = 0; i < n_threads; i++) lanes[i] = lane_of(work, scratch, i);
    run_threads(run_lane, lanes, sizeof *lanes, n_threads);
    free(work->shared_files);
    for (int64_t i = row; i < end; i++) n_left += work->rows->left[i] != DONE;
    return n_left;
}

/* Decode and place rows [row, end) on up to n_threads threads, each with its areas of scratch. Return the number of rows that
 * were left. */
int64_t gpuzarr_place_rows(const job_t *job, const rows_t *rows, int64_t row, int64_t end, char *scratch, int64_t n_threads)
{
    work_t work = {.job = job, .rows = rows, .step = 1, .opening = PTHREAD_MUTEX_INITIALIZER};
    return run_lanes(&work, row, end, scratch, n_threads);
}

/* Read rows, then treat them like gpuzarr_place_rows. All stored rows are left if a file has another version. Rows that are not
 * in the page cache are left unless `waits` is set. Return the number of rows that were left. */
int64_t gpuzarr_read_rows(
    const job_t *job, const rows_t *rows, files_t *files, int64_t row, int64_t end, char *scratch, int64_t n_threads)
{
    work_t work = {.job = job, .rows = rows, .files = files, .step = 1, .opening = PTHREAD_MUTEX_INITIALIZER};
    if (files->offset) {
        work.step = (end - row) / (n_threads * GRABS_A_THREAD);
        if (work.step < 1) work.step = 1;
        if (work.step > MOST_STEP) work.step = MOST_STEP;
    }
    int64_t n_left = run_lanes(&work, row, end, scratch, n_threads);
    files->n_read += work.n_read;
    files->is_cold = work.is_cold && !work.is_changed;
    if (!work.is_changed) return n_left;
    n_left = 0;
    for (; row < end; row++)
        if (rows->nbytes[row] != NO_FILE) rows->left[row] = LEFT, n_left++;
    return n_left;
}

/* Evenly spaced elements along an axis: the first one, their number and distance; the number of chunks that hold them, the length
 * of a chunk, and the number of chunks of a shard. */
typedef struct { int64_t first, count, step, n_pieces, chunk_length, n_chunks; } span_of_axis_t;

/* Chunks to look up in the indexes of shards, one box of chunks for each shard. */
typedef struct {
    int64_t ndim, n_shards, n_rows;
    const span_of_axis_t *axes;
    const int64_t *ranges;              /* per shard and axis: the first piece, and the one after the last */
    const int64_t *const *index;        /* two addresses per shard: offsets and lengths of its chunks; NULL: the shard does not
                                           exist. NULL as a whole: chunks are unsharded */
    int64_t *table;                     /* results: columns of shards (unsharded chunks: of rows), offsets and lengths, then ndim
                                           piece numbers of each row. Stored chunks come first, sorted by shard and offset */
    int64_t most_nbytes;                /* result: of the longest stored chunk */
} lookup_t;

/* Return the coordinate of a piece's chunk. If steps are longer than chunks, each element lies in a chunk of its own. */
static int64_t chunk_of(const span_of_axis_t *axis, int64_t piece)
{
    if (axis->step > axis->chunk_length) return (axis->first + piece * axis->step) / axis->chunk_length;
    return axis->first / axis->chunk_length + piece;
}

/* Cut axes at the borders of chunks, into the columns that job_t.pieces has: first elements, first positions in the output,
 * counts. */
void gpuzarr_cut_axes(const span_of_axis_t *axes, int64_t ndim, int64_t n_pieces, int64_t *piece)
{
    for (const span_of_axis_t *axis = axes; axis < axes + ndim; axis++)
        for (int64_t i = 0; i < axis->n_pieces; i++, piece++) {
            int64_t border = chunk_of(axis, i) * axis->chunk_length, next_border = border + axis->chunk_length;
            /* of the requested elements, the first one in this chunk, and the first one after it */
            int64_t at = border > axis->first ? (border - axis->first + axis->step - 1) / axis->step : 0;
            int64_t end = (next_border - axis->first + axis->step - 1) / axis->step;
            piece[0] = axis->first + at * axis->step - border;
            piece[n_pieces] = at;
            piece[2 * n_pieces] = (end < axis->count ? end : axis->count) - at;
        }
}

/* Entry of a chunk in the index of its shard, and its row before rows are sorted. */
typedef struct { int64_t shard, offset, nbytes, row; } entry_t;

/* Compare entries by shard and offset, for qsort. Missing chunks come last, in the order of rows. */
static int by_place(const void *one, const void *other)
{
    const entry_t *a = one, *b = other;
    int a_is_missing = a->nbytes == NO_FILE, b_is_missing = b->nbytes == NO_FILE;
    if (a_is_missing != b_is_missing) return a_is_missing - b_is_missing;
    if (!a_is_missing && a->shard != b->shard) return a->shard < b->shard ? -1 : 1;
    if (!a_is_missing && a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    if (!a_is_missing && a->nbytes != b->nbytes) return a->nbytes < b->nbytes ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

/* Return the number that up to eight bytes stand for, in big-endian order if `is_big`, else in little-endian order. */
static uint64_t number_at(const char *at, int64_t nbytes, int64_t is_big)
{
    uint64_t number = 0;
    for (int64_t i = 0; i < nbytes; i++) number = number << 8 | (uint8_t)at[is_big ? i : nbytes - 1 - i];
    return number;
}

/* Sort spans by their first bytes, the largest of which is `most`: a radix sort by 8 bits. `other` is scratch for as many
 * spans. Return the address of the sorted spans. */
static span_t *sorted_spans(span_t *spans, span_t *other, int64_t n, int64_t most)
{
    for (int shift = 0; shift < 64 && most >> shift; shift += 8) {
        int64_t place[257] = {0};
        span_t *before = spans;
        for (int64_t i = 0; i < n; i++) place[(before[i].first >> shift & 0xFF) + 1]++;
        for (int i = 0; i < 256; i++) place[i + 1] += place[i];
        for (int64_t i = 0; i < n; i++) other[place[before[i].first >> shift & 0xFF]++] = before[i];
        spans = other, other = before;
    }
    return spans;
}

/* Decode the index of a shard to n offsets and n lengths, which is NO_FILE for a missing chunk. Return 0 if a range is not within
 * [floor, limit), or overlaps another one without being equal to it, or if there is not enough memory. */
int64_t gpuzarr_take_index(const char *index, int64_t n, int64_t is_big, int64_t floor, int64_t limit, int64_t *offset)
{
    int64_t n_there = 0, most = 0, is_in_order = 1;
    span_t *spans = malloc((size_t)(2 * n + 1) * sizeof *spans);
    int is_sound = spans && limit >= 0;
    for (int64_t i = 0; i < n && is_sound; i++, index += ENTRY_NBYTES) {
        uint64_t first = number_at(index, 8, is_big), nbytes = number_at(index + 8, 8, is_big);
        int is_there = first != UINT64_MAX || nbytes != UINT64_MAX;
        is_sound = !is_there || (first >= (uint64_t)floor && first <= (uint64_t)limit && nbytes <= (uint64_t)limit - first);
        offset[i] = is_there ? (int64_t)first : 0, offset[n + i] = is_there ? (int64_t)nbytes : NO_FILE;
        if (!is_there || !is_sound) continue;
        is_in_order &= !n_there || spans[n_there - 1].end <= offset[i];
        if (offset[i] > most) most = offset[i];
        spans[n_there++] = (span_t){offset[i], offset[i] + offset[n + i]};
    }
    const span_t *one = is_sound && !is_in_order ? sorted_spans(spans, spans + n, n_there, most) : NULL;
    for (int64_t i = 0; one && is_sound && i + 1 < n_there; i++)
        is_sound = one[i].end <= one[i + 1].first || (one[i].first == one[i + 1].first && one[i].end == one[i + 1].end);
    free(spans);
    return is_sound;
}

/* Fill in the rows of one shard in C order, with their piece numbers. Return the row after them. */
static int64_t list_shard(const lookup_t *lookup, int64_t shard, int64_t row, entry_t *entries)
{
    const int64_t *range = lookup->ranges + 2 * lookup->ndim * shard;
    const int64_t *offset = lookup->index ? lookup->index[2 * shard] : NULL, *nbytes = offset ? lookup->index[2 * shard + 1] : NULL;
    int64_t at[MOST_AXES], axis = 0, *numbers = lookup->table + 3 * lookup->n_rows;
    for (int64_t i = 0; i < lookup->ndim; i++) at[i] = range[2 * i];
    while (axis >= 0) {
        int64_t number = 0;
        for (int64_t i = 0; i < lookup->ndim; i++) {
            number = number * lookup->axes[i].n_chunks + chunk_of(lookup->axes + i, at[i]) % lookup->axes[i].n_chunks;
            numbers[row * lookup->ndim + i] = at[i];
        }
        entries[row] = (entry_t){shard, offset ? offset[number] : 0, offset ? nbytes[number] : NO_FILE, row};
        row++;
        for (axis = lookup->ndim - 1; axis >= 0 && ++at[axis] == range[2 * axis + 1]; axis--) at[axis] = range[2 * axis];
    }
    return row;
}

/* Look up all rows. Return the number of stored chunks, or of all rows if chunks are unsharded; -1 if there is not enough
 * memory. */
int64_t gpuzarr_look_up(lookup_t *lookup)
{
    entry_t *entries = malloc((size_t)(lookup->n_rows + 1) * sizeof *entries);
    int64_t row = 0, n_stored = 0, is_sorted = 1, ndim = lookup->ndim, *unsorted = NULL;
    int64_t *offset = lookup->table + lookup->n_rows, *nbytes = offset + lookup->n_rows, *numbers = nbytes + lookup->n_rows;
    if (!entries) return -1;
    for (int64_t shard = 0; shard < lookup->n_shards; shard++) row = list_shard(lookup, shard, row, entries);
    for (row = 1; row < lookup->n_rows && is_sorted; row++) is_sorted = by_place(entries + row - 1, entries + row) < 0;
    if (!is_sorted) {
        size_t length = (size_t)(lookup->n_rows * ndim) * sizeof *unsorted;
        unsorted = malloc(length);
        if (!unsorted) {
            free(entries);
            return -1;
        }
        memcpy(unsorted, numbers, length);
        qsort(entries, (size_t)lookup->n_rows, sizeof *entries, by_place);
    }
    for (row = 0; row < lookup->n_rows; row++) {
        lookup->table[row] = lookup->index ? entries[row].shard : row;
        offset[row] = entries[row].offset, nbytes[row] = entries[row].nbytes;
        n_stored += !lookup->index || nbytes[row] != NO_FILE;
        if (nbytes[row] > lookup->most_nbytes) lookup->most_nbytes = nbytes[row];
        for (int64_t i = 0; unsorted && i < ndim; i++) numbers[row * ndim + i] = unsorted[entries[row].row * ndim + i];
    }
    free(unsorted), free(entries);
    return n_stored;
}

#include "read_box.h"
#include "encode.h"
#include "layout.h"
