/* Encode chunks: gather each from the array, and add it to a unit; copy those that the write does not touch. */

enum { ZSTD_LEVEL = 100, ZSTD_CHECKSUM = 201 }; /* zstd.h: ZSTD_cParameter */

typedef size_t encode_zstd_t(void *, void *, size_t, const void *, size_t);
typedef size_t set_zstd_t(void *, int, int);
typedef int encode_blosc_t(int, int, size_t, size_t, const void *, void *, size_t, const char *, size_t, int);
typedef int encode_lz4_t(const char *, char *, int, int, int);
typedef size_t deflate_t(void *, const void *, size_t, void *, size_t);
typedef void *make_deflate_t(int);

/* Enlarge memory to `nbytes` bytes if it is smaller. Return 0 if there is not enough memory. */
static int enlarge(char **room, int64_t *room_nbytes, int64_t nbytes)
{
    if (nbytes <= *room_nbytes) return 1;
    char *more = realloc(*room, (size_t)nbytes);
    if (!more) return 0;
    *room = more, *room_nbytes = nbytes;
    return 1;
}

/* Return memory for more bytes at the end of the unit's room; NULL if there is none. */
static char *room_in_unit(unit_t *unit, int64_t nbytes)
{
    int has_more = enlarge(&unit->room, &unit->room_nbytes, unit->used + nbytes + 1); /* a byte more, so never 0 */
    return has_more ? unit->room + unit->used : NULL;
}

/* Add bytes to the unit: those at `at` in the caller's array, or the next ones in its room if `at` is NULL. Neighbours form one
 * part. */
static void add_part(unit_t *unit, char *at, int64_t nbytes)
{
    part_t *last = unit->n_parts ? unit->part + unit->n_parts - 1 : NULL;
    int extends_array_part = last && at && last->at && last->at + last->nbytes == at;
    int extends_room_part = last && !at && !last->at;
    if (extends_array_part || extends_room_part)
        last->nbytes += nbytes;
    else
        unit->part[unit->n_parts++] = (part_t){at, unit->used, nbytes};
    if (!at) unit->used += nbytes;
}

static void free_unit(unit_t *unit)
{
    if (unit) free(unit->room);
    free(unit);
}

/* Return a new context for encoding; NULL if the codec needs none, or there is no memory. */
static void *context_for(const encoder_t *encoder)
{
    if (!encoder->make_context) return NULL;
    if (!encoder->set_parameter) return ((make_deflate_t *)encoder->make_context)((int)encoder->level);
    void *context = ((make_t *)encoder->make_context)();
    if (!context) return NULL;
    ((set_zstd_t *)encoder->set_parameter)(context, ZSTD_LEVEL, (int)encoder->level);
    ((set_zstd_t *)encoder->set_parameter)(context, ZSTD_CHECKSUM, (int)encoder->checksum);
    return context;
}

/* Whether the box of the first row is a whole chunk. */
static int is_whole_chunk(const job_t *job, const rows_t *rows)
{
    for (int64_t i = 0; i < job->ndim; i++) {
        piece_t piece = piece_of(job, rows, 0, i);
        if (piece.count != job->chunk_shape[i] || piece.index) return 0;
    }
    return 1;
}

/* Decode a stored chunk to `to`, where a part of it is overwritten later. Return 0 after a failure. */
static int decode_old(writer_t *writer, object_t *object, int64_t entry, char *to)
{
    writing_t *writing = writer->writing;
    const job_t *job = writing->encoder->job;
    const progress_t *progress = writing->progress + (object - writing->objects);
    int64_t nbytes = object->old_nbytes[entry];
    if (!writer->decoding) writer->decoding = take_context(job);
    if (!enlarge(&writer->room, &writer->room_nbytes, nbytes + 1) || (job->make_context && !writer->decoding))
        return fail(writing, object, NO_MEMORY, entry);
    if (!read_old(object, progress, writer->room, nbytes, object->old_offset[entry])) return fail_to_read(writing, object, entry);
    nbytes = without_checksums(job, writer->room, nbytes);
    char *block = job->codec == RAW ? NULL : writer->scratch + job->area_nbytes + HEAD_NBYTES;
    int is_sound = nbytes >= 0 && (job->codec == RAW ? memcpy(to, writer->room, (size_t)nbytes) != NULL
                                                     : decode_chunk(job, writer->decoding, writer->room, (size_t)nbytes, to, block));
    return is_sound || fail_to_read(writing, object, entry);
}

/* Whether two elements are equal, or both contain NaN. */
static int is_equal(const encoder_t *encoder, const char *one, const char *other)
{
    int64_t n = encoder->n_numbers, nbytes = encoder->job->itemsize / n;
    static const uint64_t infinities[] = {[2] = 0x7C00, [4] = 0x7F800000, [8] = UINT64_C(0x7FF) << 52};
    /* Without its sign bit, a NaN is a larger number than infinity, and both zeros are 0. */
    uint64_t infinity = infinities[nbytes], unsigned_bits = UINT64_MAX >> (65 - 8 * nbytes);
    int are_equal = 1, one_is_nan = 0, other_is_nan = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t a = number_at(one + i * nbytes, nbytes, encoder->swapped);
        uint64_t b = number_at(other + i * nbytes, nbytes, encoder->swapped);
        are_equal &= a == b || !((a | b) & unsigned_bits);
        one_is_nan |= (a & unsigned_bits) > infinity, other_is_nan |= (b & unsigned_bits) > infinity;
    }
    return are_equal || (one_is_nan && other_is_nan);
}

/* Whether a chunk holds only the fill value, by the comparison of zarr-python. */
static int is_empty(const encoder_t *encoder, const char *chunk)
{
    const job_t *job = encoder->job;
    int64_t itemsize = job->itemsize, nbytes = job->chunk_nbytes;
    if (!encoder->n_numbers) /* all elements are equal if each one equals the next */
        return !memcmp(chunk, job->fill, (size_t)itemsize) && !memcmp(chunk, chunk + itemsize, (size_t)(nbytes - itemsize));
    for (int64_t at = 0; at < nbytes; at += itemsize)
        if (!is_equal(encoder, chunk + at, job->fill)) return 0;
    return 1;
}

/* Encode a chunk. Return its encoded length; 0 after a failure. */
static int64_t encode_chunk(const writer_t *writer, const char *chunk, char *to)
{
    const encoder_t *encoder = writer->writing->encoder;
    size_t nbytes = (size_t)encoder->job->chunk_nbytes, most = (size_t)encoder->most_nbytes, n;
    int encoded_nbytes;
    switch (encoder->job->codec) {
    case ZSTD:
        n = ((encode_zstd_t *)encoder->encode)(writer->encoding, to, most, chunk, nbytes);
        return n > (size_t)-ZSTD_ERRORS ? 0 : (int64_t)n;
    case BLOSC:
        encoded_nbytes = ((encode_blosc_t *)encoder->encode)(
            (int)encoder->level, (int)encoder->shuffle, (size_t)encoder->typesize, nbytes, chunk, to,
            nbytes + BLOSC_HEADER_NBYTES, encoder->cname, (size_t)encoder->blocksize, 1);
        return encoded_nbytes < 0 ? 0 : encoded_nbytes;
    case LZ4:
        put_little(to, nbytes, 4);
        encoded_nbytes = ((encode_lz4_t *)encoder->encode)(chunk, to + 4, (int)nbytes, (int)most - 4, (int)encoder->level);
        return encoded_nbytes <= 0 ? 0 : encoded_nbytes + 4;
    default: /* zlib, gzip */
        return (int64_t)((deflate_t *)encoder->encode)(writer->encoding, chunk, nbytes, to, most);
    }
}

/* Set `box` to the piece numbers of what is written to a chunk. Return 0 if nothing is. */
static int find_box(const encoder_t *encoder, const object_t *object, int64_t entry, int64_t *box)
{
    int64_t remaining = entry, is_touched = 1; /* the entry's coordinates in the object are divided off, from the last axis on */
    for (int64_t i = encoder->job->ndim - 1; i >= 0; i--) {
        int64_t coordinate = remaining % encoder->per_object[i];
        box[i] = encoder->piece[i][object->at[i] * encoder->per_object[i] + coordinate];
        is_touched &= box[i] >= 0;
        remaining /= encoder->per_object[i];
    }
    return (int)is_touched;
}

/* Copy chunks that the write does not touch, in encoded form, as far as they follow each other in the stored object, from position
 * k up to position `end` in the order of chunks. Return the position after them; 0 after a failure. */
static int64_t carry(writer_t *writer, object_t *object, progress_t *progress, int64_t k, int64_t end)
{
    const encoder_t *encoder = writer->writing->encoder;
    const int64_t *order = encoder->order;
    int64_t box[MOST_AXES], n = 0, entry = order[k], first, begin = k;
    int stored = find_stored(writer->writing, object, entry);
    if (stored < 0) return 0;
    if (!stored) return k + 1; /* the chunk remains missing */
    for (first = object->old_offset[entry]; k < end; k++) {
        entry = order[k];
        if (object->old_nbytes[entry] == NO_FILE || object->old_offset[entry] != first + n) break;
        if (k > begin && find_box(encoder, object, entry, box)) break;
        progress->nbytes[entry] = object->old_nbytes[entry];
        n += progress->nbytes[entry];
    }
    char *to = room_in_unit(writer->unit, n);
    if (!to) return fail(writer->writing, object, NO_MEMORY, entry);
    if (!read_old(object, progress, to, n, first)) return fail_to_read(writer->writing, object, entry);
    add_part(writer->unit, NULL, n);
    return k;
}

/* Put together a chunk in `to` from the elements that are written, and for all others the stored ones or the fill value. Return 0
 * after a failure. */
static int make_chunk(writer_t *writer, object_t *object, const rows_t *rows, int64_t entry, char *to)
{
    const encoder_t *encoder = writer->writing->encoder;
    const job_t *job = encoder->job;
    job_t gathering = *job;
    int is_whole = is_whole_chunk(job, rows), stored = is_whole ? 0 : find_stored(writer->writing, object, entry);
    gathering.steps = encoder->swap;
    if (stored < 0) return 0;
    if (stored && !decode_old(writer, object, entry, to)) return 0;
    if (!is_whole && !stored) /* the elements that are not written get the fill value */
        copy_elements(to, (positions_t){job->itemsize, NULL}, job->fill, (positions_t){0, NULL}, job->chunk_nbytes / job->itemsize,
                      job->itemsize);
    exchange_box(&gathering, rows, 0, to, TO_CHUNK);
    return 1;
}

/* Encode a chunk, and add it to the unit unless it holds only the fill value and is not stored. Return 0 after a failure. */
static int encode_entry(writer_t *writer, object_t *object, progress_t *progress, int64_t entry, const int64_t *box)
{
    const encoder_t *encoder = writer->writing->encoder;
    const job_t *job = encoder->job;
    rows_t rows = {.boxes = box};
    int is_raw = job->codec == RAW;
    /* libdeflate reads its input twice, and another thread may change the caller's array in between: it gets a copy. */
    int is_read_once = job->codec != ZLIB && job->codec != GZIP;
    int is_in_array = !encoder->swap && is_read_once && is_whole_chunk(job, &rows) && is_direct(job, &rows, 0);
    int needs_room = !is_in_array || !is_raw || job->n_checksums; /* others are written from where they are in the array */
    int fills_object = !object->path && !encoder->index_nbytes; /* in memory, an unsharded chunk is the whole object */
    char *chunk = is_in_array ? destination(job, &rows, 0) : NULL, *to = chunk;
    if (is_in_array && !encoder->keeps_empty && is_empty(encoder, chunk)) return 1; /* it is not stored */
    if (needs_room) to = fills_object ? object->memory : room_in_unit(writer->unit, encoder->most_nbytes);
    /* a writer frees its scratch itself, so the address is stored in the same place twice */
    int has_scratch = is_in_array || is_raw || own_memory(&writer->scratch, &writer->scratch, scratch_nbytes(job) + HEAD_NBYTES);
    if (!to || !has_scratch) return fail(writer->writing, object, NO_MEMORY, entry);
    if (!is_in_array) {
        chunk = is_raw ? to : writer->scratch + HEAD_NBYTES;
        if (!make_chunk(writer, object, &rows, entry, chunk)) return 0;
        if (!encoder->keeps_empty && is_empty(encoder, chunk)) return 1;
    }
    int64_t nbytes = is_raw ? job->chunk_nbytes : encode_chunk(writer, chunk, to);
    if (!nbytes) return fail(writer->writing, object, NOT_ENCODED, entry);
    if (is_raw && chunk != to) memcpy(to, chunk, (size_t)nbytes);
    for (int64_t i = 0; i < job->n_checksums; i++) {
        put_little(to + nbytes, gpuzarr_crc32c(to, nbytes), CRC_NBYTES);
        nbytes += CRC_NBYTES;
    }
    add_part(writer->unit, needs_room && !fills_object ? NULL : to, nbytes);
    progress->nbytes[entry] = nbytes;
    return 1;
}
