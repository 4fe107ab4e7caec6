/* What Python describes a read by: an array and its codecs, the chunks that are read, and the files that hold them. */

enum codec { RAW, ZSTD, BLOSC, LZ4, ZLIB, GZIP, N_CODECS };
enum stage { UNSHUFFLE, ACCUMULATE, TAKE_STEPS }; /* operations on a whole chunk, after its compressor */
enum { DONE, LEFT, ABSENT }; /* status of a row: placed; left to Python; missing, where the job has no fill value */
/* Instead of a length: there is no chunk or file; it is left to a call that waits for the disk, or to Python; it is decoded. */
enum { NO_FILE = -1, READ_OTHERWISE = -2, DECODED = -3 };
enum { VERSION_NUMBERS = 5, MOST_AXES = 64 }; /* numbers of a file's version; axes of an array */

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
