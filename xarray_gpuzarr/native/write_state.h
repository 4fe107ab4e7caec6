/* What Python describes a write by, and the state of a write: how far each object has come, and what a thread works with. */

enum { UNFINISHED, WRITTEN, REFUSED, DAMAGED, CHANGED, NOT_ENCODED, NO_MEMORY }; /* states of an object */
enum { MOST_CHUNKS = 64 }; /* of a unit */

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
