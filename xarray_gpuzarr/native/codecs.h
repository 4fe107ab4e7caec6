/* Decode chunks, or parts of them, by functions of the codec libraries that Python calls, too. */

enum { LEAST_PARTED_NBYTES = 32 * 1024 }; /* of shorter chunks, all is decoded, also if less is requested */
enum { ZSTD_ERRORS = 120, ZSTD_BLOCK_NBYTES = 128 * 1024 }; /* results above -ZSTD_ERRORS, as size_t, are errors (zstd_errors.h) */
enum { BLOSC_HEADER_NBYTES = 16 };
enum { BLOSC_LEAST_INFLATED = 32 * 1024 }; /* C-Blosc decodes shorter chunks, also those of zlib */
enum { BLOSC_STORED_HEAD = BLOSC_HEADER_NBYTES + 8, HEAD_NBYTES = 32 }; /* what `unshuffle` writes before a block; room for that */
enum { BLOSC_BYTES_SHUFFLED = 1, BLOSC_SHUFFLED = 5 }; /* flags of a Blosc frame: bytes are shuffled; bytes or bits are */
enum { BLOSC_UNSPLIT = 0x10 };                         /* flag: each block is a single stream */
enum { BLOSC_NOT_INFLATED = 0xA };                     /* flags of frames that are stored, or of an unknown kind */
enum { BLOSC_OF_ZLIB = 3 };                            /* compressor in the upper three bits of the flags */

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
