/* Writing: chunks are gathered from an array, encoded, and written to objects. A file is only replaced by a complete one. */

enum { UNFINISHED, WRITTEN, REFUSED, DAMAGED, CHANGED, NOT_ENCODED, NO_MEMORY }; /* states of an object */
enum { MOST_CHUNKS = 64 };            /* of a unit */
enum { WRITEBACK_NBYTES = 1 << 20 };  /* bytes whose writeback is started at a time, see `start_writeback` */
enum { ZSTD_LEVEL = 100, ZSTD_CHECKSUM = 201 }; /* zstd.h: ZSTD_cParameter */

typedef size_t encode_zstd_t(void *, void *, size_t, const void *, size_t);
typedef size_t set_zstd_t(void *, int, int);
typedef int encode_blosc_t(int, int, size_t, size_t, const void *, void *, size_t, const char *, size_t, int);
typedef int encode_lz4_t(const char *, char *, int, int, int);
typedef size_t deflate_t(void *, const void *, size_t, void *, size_t);
typedef void *make_deflate_t(int);

/* Codecs of one write, and the order of chunks in an object. */
typedef struct {
    const job_t *job;            /* places of elements in chunks and in the array; decodes chunks that are changed in part */
    const steps_t *swap;         /* reverses the bytes of elements; NULL: the array has the stored byte order */
    int64_t level, checksum, shuffle, typesize, blocksize;
    const char *cname;
    void *encode, *make_context, *free_context, *set_parameter;
    int64_t most_nbytes;         /* largest length of an encoded chunk */
    int64_t keeps_empty;         /* whether chunks that hold only the fill value are stored */
    int64_t n_numbers, swapped;  /* numbers that an element consists of, and whether they are big-endian, for comparing it with the
                                    fill value by value; n_numbers is 0 if elements are compared by their bits */
    int64_t n_entries, step;     /* number of chunks of an object, and of a unit */
    const int64_t *order;        /* entries of an object's chunks in its index, in the order in which chunks are written */
    const int64_t *per_object;   /* number of chunks along each axis of an object */
    const int64_t *const *piece; /* per axis, for each chunk along all objects: the piece that is written to it; -1: none */
    int64_t index_nbytes, index_is_first, index_has_checksum; /* index_nbytes is 0 for unsharded chunks */
} encoder_t;

/* An object to write, and the result of writing it. */
typedef struct {
    const char *path, *partial; /* of its file, and of the file that replaces it; NULL: it is written to `memory` */
    const int64_t *at;          /* per axis: the object's number among those of the write */
    char *memory;               /* it may be a chunk of the caller's array itself */
    int64_t memory_nbytes;
    int64_t needs_old;          /* whether stored chunks are copied, or changed in part */
    const char *old;            /* the stored object, if it is not a file */
    const int64_t *old_version; /* of the stored file */
    const int64_t *old_offset, *old_nbytes;     /* of the stored chunks; NO_FILE: missing; NULL: no object is stored */
    int64_t state, nbytes, code, entry; /* results: state, length, errno, and the chunk that failed, or -1 */
} object_t;

/* Encoded bytes of a unit: from the address `at` in the caller's array on, or, if that is NULL, from byte `first` of the unit's
 * room on. */
typedef struct { char *at; int64_t first, nbytes; } part_t;

/* A unit: chunks that follow each other in an object, which one thread encodes. */
typedef struct {
    int64_t n_parts, used, room_nbytes; /* used: bytes of the room that parts have */
    part_t part[MOST_CHUNKS];
    char *room;
} unit_t;

/* State of an object while it is written. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;       /* signalled when `turn` has changed, or an object failed */
    int64_t turn, end;          /* number of the unit that is written next, and its offset in the object */
    unit_t **kept;              /* encoded units that wait for their turn, by number; NULL: none */
    int64_t n_kept;
    int64_t *nbytes;            /* encoded length of each chunk; -1: not stored */
    char *index;                /* entries of the chunks that have been written */
    int old_file, file;         /* descriptors; -1: not open */
    int64_t is_partial, replaces; /* whether an incomplete file exists, and whether it is to replace another */
    int64_t started;            /* bytes whose writeback to the disk has been started */
} progress_t;

/* A write: objects, and how far each has come. */
typedef struct {
    const encoder_t *encoder;
    object_t *objects;
    progress_t *progress;       /* of each object */
    int64_t n_objects, n_begun; /* n_begun: objects whose progress has been initialised */
    int64_t n_units, units_each; /* number of units of all objects, and of each object */
    int64_t most_kept;          /* most units of an object that wait for their turn, besides those that threads hold */
    int64_t budget;             /* most threads of all writes of the process */
    _Atomic int64_t *n_helpers; /* number of threads that gpuzarr_write has started and that have not ended; Python reads it */
    atomic_llong next;          /* the unit that is taken next */
    atomic_int is_stopped;
    _Atomic(void *) spare[MOST_THREADS]; /* units to use again, with their memory */
} writing_t;

/* What one thread of a write works with. */
typedef struct {
    writing_t *writing;
    int64_t is_helper;          /* whether the thread must leave when the budget is exceeded; 0 for the caller of gpuzarr_write */
    _Atomic int64_t *n_helpers; /* number that the thread decreases when it ends; NULL for threads that Python has started */
    char *scratch, *room;       /* memory for decoding and gathering, and for an encoded chunk; NULL until they are needed */
    int64_t room_nbytes;
    void *encoding, *decoding;  /* contexts */
    unit_t *unit;
} writer_t;

/* Record why an object was not written, and stop the write. Return 0. */
static int fail(writing_t *writing, object_t *object, int64_t state, int64_t entry)
{
    int64_t code = errno;
    progress_t *progress = writing->progress + (object - writing->objects);
    pthread_mutex_lock(&progress->lock);
    if (object->state == UNFINISHED) object->state = state, object->code = code, object->entry = entry;
    writing->is_stopped = 1;
    pthread_cond_broadcast(&progress->moved);
    pthread_mutex_unlock(&progress->lock);
    return 0;
}

static void put_little(char *at, uint64_t value, int nbytes)
{
    for (int i = 0; i < nbytes; i++) at[i] = (char)(value >> 8 * i);
}

/* Read bytes of the stored object. Return 0 after a failure. */
static int read_old(const object_t *object, const progress_t *progress, char *to, int64_t nbytes, int64_t offset)
{
    if (object->old) return memcpy(to, object->old + offset, (size_t)nbytes) != NULL;
    for (ssize_t n; nbytes > 0; to += n, offset += n, nbytes -= n)
        if ((n = pread(progress->old_file, to, (size_t)nbytes, offset)) <= 0) return 0;
    return 1;
}

/* Whether the stored object is still the one that the write started from. */
static int is_old_kept(const object_t *object)
{
    struct stat now;
    if (!object->path || !object->needs_old) return 1;
    if (stat(object->path, &now)) return !object->old_nbytes;
    if (!object->old_nbytes) return S_ISDIR(now.st_mode); /* no object was stored, and a directory is none */
    return is_version(&now, object->old_version);
}

/* Record that a stored chunk could not be read: it is damaged, or the object was changed meanwhile. Return 0. */
static int fail_to_read(writing_t *writing, object_t *object, int64_t entry)
{
    return fail(writing, object, is_old_kept(object) ? DAMAGED : CHANGED, entry);
}

/* Return whether a chunk is stored, after opening the stored file, once for all threads; -1 if it cannot be opened or has another
 * version. */
static int find_stored(writing_t *writing, object_t *object, int64_t entry)
{
    progress_t *progress = writing->progress + (object - writing->objects);
    int64_t state = UNFINISHED;
    if (!object->old_nbytes || object->old_nbytes[entry] == NO_FILE) return 0;
    pthread_mutex_lock(&progress->lock);
    if (object->path && progress->old_file < 0) {
        progress->old_file = open(object->path, READ_FLAGS);
        if (progress->old_file < 0 && errno != ENOENT)
            state = REFUSED;
        else if (!is_of_version(progress->old_file, object->old_version))
            state = CHANGED; /* or deleted */
    }
    pthread_mutex_unlock(&progress->lock);
    if (state == UNFINISHED) return 1;
    fail(writing, object, state, -1);
    return -1;
}

/* ---- a chunk */

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

/* ---- an object */

/* Create the directories of a path. Errors show when its file is created. */
static void make_folders(const char *path)
{
    char *folder = strdup(path);
    for (char *at = folder ? strchr(folder + 1, '/') : NULL; at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(folder, 0777);
        *at = '/';
    }
    free(folder);
}

/* Create the file that replaces an object's file once it is complete. */
static int open_partial(const object_t *object, progress_t *progress)
{
    for (int attempt = 0; attempt < 2 && progress->file < 0; attempt++) {
        if (attempt > 0) make_folders(object->partial); /* the first attempt failed with ENOENT */
        progress->file = open(object->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (progress->file < 0 && errno != ENOENT) return 0;
    }
    progress->is_partial = progress->file >= 0, progress->replaces = !access(object->path, F_OK);
    return (int)progress->is_partial;
}

/* Start the writeback of written bytes. Before ext4 renames a file over another, it starts the writeback of all its bytes: for
 * 32 MB, a write takes 25 ms with this function, 42 ms without. */
static void start_writeback(progress_t *progress, int64_t end)
{
    if (end - progress->started < WRITEBACK_NBYTES || !progress->replaces) return;
#ifdef __linux__
    sync_file_range(progress->file, progress->started, end - progress->started, SYNC_FILE_RANGE_WRITE);
#endif
    progress->started = end;
}

/* Write bytes of an object, at an offset in it. Return 0 after a failure. */
static int put(const object_t *object, progress_t *progress, const char *at, int64_t nbytes, int64_t offset)
{
    if (!object->path) {
        if (offset + nbytes > object->memory_nbytes) return errno = ENOBUFS, 0;
        return at == object->memory + offset || memcpy(object->memory + offset, at, (size_t)nbytes) != NULL;
    }
    if (progress->file < 0 && !open_partial(object, progress)) return 0;
    for (ssize_t n; nbytes > 0; at += n, offset += n, nbytes -= n) {
        int64_t some = nbytes > WRITEBACK_NBYTES && progress->replaces ? WRITEBACK_NBYTES : nbytes;
        n = pwrite(progress->file, at, (size_t)some, offset);
        if (n == 0) errno = ENOSPC;
        if (n <= 0 && !(n < 0 && errno == EINTR)) return 0;
        if (n < 0) n = 0;
        start_writeback(progress, offset + n);
    }
    return 1;
}

/* Write a unit at the end of what is written of its object, and enter its chunks in the index. Return 0 after a failure. */
static int put_unit(writing_t *writing, object_t *object, progress_t *progress, int64_t number, const unit_t *unit)
{
    const encoder_t *encoder = writing->encoder;
    int64_t end = progress->end, next = (number + 1) * encoder->step;
    for (const part_t *part = unit->part; part < unit->part + unit->n_parts; part++) {
        if (!put(object, progress, part->at ? part->at : unit->room + part->first, part->nbytes, end))
            return fail(writing, object, REFUSED, encoder->order[number * encoder->step]);
        end += part->nbytes;
    }
    for (int64_t k = number * encoder->step; k < next && k < encoder->n_entries; k++) {
        int64_t entry = encoder->order[k], nbytes = progress->nbytes[entry];
        if (nbytes < 0) continue;
        put_little(progress->index + entry * ENTRY_NBYTES, (uint64_t)progress->end, 8);
        put_little(progress->index + entry * ENTRY_NBYTES + 8, (uint64_t)nbytes, 8);
        progress->end += nbytes;
    }
    return 1;
}

/* Write the index of a shard. Return 0 after a failure. */
static int put_index(const encoder_t *encoder, const object_t *object, progress_t *progress)
{
    int64_t nbytes = encoder->n_entries * ENTRY_NBYTES, at = encoder->index_is_first ? 0 : progress->end;
    if (encoder->index_has_checksum) put_little(progress->index + nbytes, gpuzarr_crc32c(progress->index, nbytes), CRC_NBYTES);
    return put(object, progress, progress->index, encoder->index_nbytes, at);
}

/* Close a file if it is open. Return 0 after a failure. */
static int close_file_of(int *file)
{
    int open_file = *file;
    *file = -1;
    return open_file < 0 || close(open_file) == 0;
}

/* Complete an object whose units have all been written: write its index, and replace the stored object, or delete that if no chunk
 * is stored. Return 0 after a failure. */
static int complete(writing_t *writing, object_t *object, progress_t *progress)
{
    const encoder_t *encoder = writing->encoder;
    int64_t first = encoder->index_is_first ? encoder->index_nbytes : 0;
    int64_t is_there = progress->end > first; /* whether the object has any chunk */
    if (!is_old_kept(object)) return fail(writing, object, CHANGED, -1);
    close_file_of(&progress->old_file);
    if (!is_there && object->path && unlink(object->path) && errno != ENOENT && errno != ENOTDIR)
        return fail(writing, object, REFUSED, -1);
    if (is_there && encoder->index_nbytes && !put_index(encoder, object, progress)) return fail(writing, object, REFUSED, -1);
    if (is_there && object->path && (!close_file_of(&progress->file) || rename(object->partial, object->path)))
        return fail(writing, object, REFUSED, -1);
    progress->is_partial = 0, object->state = WRITTEN;
    object->nbytes = is_there ? progress->end + encoder->index_nbytes - first : 0;
    return 1;
}

/* Write the writer's unit and the waiting units after it, if it is the unit's turn. Otherwise leave the unit to the thread that
 * writes the one before it. Return 0 after a failure. */
static int take_turn(writer_t *writer, object_t *object, progress_t *progress, int64_t number)
{
    writing_t *writing = writer->writing;
    unit_t *unit = writer->unit;
    pthread_mutex_lock(&progress->lock);
    while (progress->turn != number && progress->n_kept >= writing->most_kept && object->state == UNFINISHED)
        pthread_cond_wait(&progress->moved, &progress->lock);
    if (progress->turn != number) {
        progress->kept[number] = unit;
        progress->n_kept++;
        unit = writer->unit = NULL;
    }
    pthread_mutex_unlock(&progress->lock);
    while (unit) {
        int is_put = put_unit(writing, object, progress, number++, unit);
        if (unit != writer->unit && !keep(writing->spare, MOST_THREADS, unit)) free_unit(unit);
        if (!is_put) return 0;
        if (number == writing->units_each) return complete(writing, object, progress);
        pthread_mutex_lock(&progress->lock);
        progress->turn = number;
        unit = progress->kept[number];
        if (unit) {
            progress->kept[number] = NULL;
            progress->n_kept--;
        }
        pthread_cond_broadcast(&progress->moved);
        pthread_mutex_unlock(&progress->lock);
    }
    return 1;
}

/* Fill the writer's unit with the chunks of unit `number`. Return 0 after a failure. */
static int fill_unit(writer_t *writer, object_t *object, progress_t *progress, int64_t number)
{
    const encoder_t *encoder = writer->writing->encoder;
    int64_t box[MOST_AXES], k = number * encoder->step;
    int64_t end = k + encoder->step < encoder->n_entries ? k + encoder->step : encoder->n_entries;
    if (!writer->unit) writer->unit = take_kept(writer->writing->spare, MOST_THREADS);
    if (!writer->unit) writer->unit = calloc(1, sizeof(unit_t));
    if (!writer->unit || (encoder->make_context && !writer->encoding)) return fail(writer->writing, object, NO_MEMORY, -1);
    writer->unit->used = writer->unit->n_parts = 0;
    while (k < end) {
        if (!find_box(encoder, object, encoder->order[k], box)) {
            if (!(k = carry(writer, object, progress, k, end))) return 0;
        } else if (!encode_entry(writer, object, progress, encoder->order[k++], box))
            return 0;
    }
    return 1;
}

static _Atomic int64_t n_at_work; /* number of threads that work on any write of this process */

/* Stop counting the calling helper if the threads of all writes exceed the budget. Return whether it must leave. */
static int leave_if_too_many(const writing_t *writing)
{
    int64_t n = n_at_work;
    while (n > writing->budget)
        if (atomic_compare_exchange_weak(&n_at_work, &n, n - 1)) return 1;
    return 0;
}

/* Encode and write units until all have been taken, the write has failed, or this helper must leave. */
static void write_units(writer_t *writer)
{
    writing_t *writing = writer->writing;
    n_at_work++;
    for (int64_t number; !writing->is_stopped;) { /* of a unit among those of all objects */
        if (writer->is_helper && leave_if_too_many(writing)) return; /* it is no longer counted in n_at_work */
        if ((number = atomic_fetch_add(&writing->next, 1)) >= writing->n_units) break;
        int64_t object_number = number / writing->units_each, unit_number = number % writing->units_each;
        object_t *object = writing->objects + object_number;
        progress_t *progress = writing->progress + object_number;
        if (fill_unit(writer, object, progress, unit_number)) take_turn(writer, object, progress, unit_number);
    }
    n_at_work--;
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

/* Free the state of an object, and delete its file if it is incomplete. */
static void end_object(const object_t *object, progress_t *progress, int64_t units_each)
{
    for (int64_t i = 0; progress->kept && i < units_each; i++) free_unit(progress->kept[i]);
    close_file_of(&progress->file), close_file_of(&progress->old_file);
    if (progress->is_partial) unlink(object->partial);
    free(progress->kept), free(progress->nbytes);
    pthread_cond_destroy(&progress->moved), pthread_mutex_destroy(&progress->lock);
}

/* Initialise the state of an object. Return 0 if there is not enough memory. */
static int begin_object(const encoder_t *encoder, progress_t *progress, int64_t units_each)
{
    /* One allocation holds the lengths of chunks, the index and its checksum. Bytes of 0xFF make all lengths -1, and all entries
     * those of missing chunks. */
    int64_t n = encoder->n_entries, length = n * (int64_t)(sizeof(int64_t) + ENTRY_NBYTES) + CRC_NBYTES;
    *progress = (progress_t){.old_file = -1, .file = -1, .end = encoder->index_is_first ? encoder->index_nbytes : 0};
    pthread_mutex_init(&progress->lock, NULL), pthread_cond_init(&progress->moved, NULL);
    progress->kept = calloc((size_t)units_each, sizeof *progress->kept);
    progress->nbytes = malloc((size_t)length);
    if (!progress->kept || !progress->nbytes) return 0;
    progress->index = (char *)memset(progress->nbytes, 0xFF, (size_t)length) + n * (int64_t)sizeof(int64_t);
    return 1;
}

/* Free a write. Return the number of objects that were not written. */
int64_t gpuzarr_end_write(writing_t *writing)
{
    int64_t n_left = 0;
    for (int64_t i = 0; i < writing->n_objects; i++) n_left += writing->objects[i].state != WRITTEN;
    for (int64_t i = 0; i < writing->n_begun; i++) end_object(writing->objects + i, writing->progress + i, writing->units_each);
    for (int i = 0; i < MOST_THREADS; i++) free_unit(writing->spare[i]);
    free(writing->progress), free(writing);
    return n_left;
}

/* Return the state of a write by up to n_threads threads; NULL if there is not enough memory. */
writing_t *gpuzarr_begin_write(
    const encoder_t *encoder, object_t *objects, int64_t n_objects, int64_t n_threads, int64_t budget, void *n_helpers)
{
    static _Atomic pid_t process;
    if (atomic_exchange(&process, getpid()) != getpid()) n_at_work = 0; /* a forked process has none of its parent's threads */
    writing_t *writing = calloc(1, sizeof *writing);
    if (!writing) return NULL;
    writing->encoder = encoder, writing->objects = objects, writing->n_objects = n_objects;
    writing->budget = budget, writing->n_helpers = n_helpers;
    writing->units_each = (encoder->n_entries + encoder->step - 1) / encoder->step;
    writing->n_units = n_objects * writing->units_each, writing->most_kept = 2 * n_threads;
    int64_t is_begun = (writing->progress = malloc((size_t)n_objects * sizeof *writing->progress)) != NULL;
    while (is_begun && writing->n_begun < n_objects)
        is_begun = begin_object(encoder, writing->progress + writing->n_begun++, writing->units_each);
    if (!is_begun) gpuzarr_end_write(writing);
    return is_begun ? writing : NULL;
}

/* Work on a write on this thread, then release what the thread has used. */
static void *run_writer(void *argument)
{
    writer_t *writer = argument;
    const encoder_t *encoder = writer->writing->encoder;
    writer->encoding = context_for(encoder);
    write_units(writer);
    if (writer->encoding) ((free_t *)encoder->free_context)(writer->encoding);
    if (writer->decoding) give_context(encoder->job, writer->decoding);
    free_unit(writer->unit), free(writer->scratch), free(writer->room);
    if (writer->n_helpers) (*writer->n_helpers)--;
    return NULL;
}

/* Write on the calling thread and n_helpers further ones, until all units have been taken or one failed. */
void gpuzarr_write(writing_t *writing, int64_t n_helpers)
{
    writer_t writers[MOST_THREADS];
    int64_t n = n_helpers < MOST_THREADS ? n_helpers + 1 : MOST_THREADS;
    for (int64_t i = 0; i < n; i++)
        writers[i] = (writer_t){.writing = writing, .is_helper = i > 0, .n_helpers = i ? writing->n_helpers : NULL};
    run_threads(run_writer, writers, sizeof *writers, n);
}

/* Help with a write on the calling thread, as long as the threads of all writes stay within the budget. */
void gpuzarr_help_write(writing_t *writing)
{
    writer_t writer = {.writing = writing, .is_helper = 1};
    run_writer(&writer);
}
