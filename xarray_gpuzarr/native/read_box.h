/* A single call that looks up, reads, decodes and places a box of a few chunks of one object, on the calling thread.
 *
 * Making the tables of an ordinary read in Python (a plan, the axes of the output, the files) takes longer than decoding a
 * chunk of 64 KB. This call makes the same tables on its stack, and treats the rows like gpuzarr_read_rows. If a chunk is
 * missing or cannot be decoded, or the file has another version, the call returns 0, and the caller does an ordinary read. */

enum { MOST_BOX_CHUNKS = 16 };

typedef struct {
    const job_t *job;                /* of the array; a copy of it gets the fields that depend on the box */
    const span_of_axis_t *axes;      /* one for each axis of the array */
    const int64_t *offset, *nbytes;  /* index of the shard; NULL: the box is one chunk, in an object of its own */
    const int64_t *version;          /* that the file of a shard must have */
    const char *path;                /* of the file that holds the object */
    const char *object;              /* bytes of the object, if it is in memory; else NULL */
    int64_t object_nbytes;           /* length of these bytes */
    const char *const *decoded;      /* elements of each chunk, chunks in C order, if all are decoded already; else NULL */
    char *out;                       /* in C order */
    char *scratch, *room;            /* memory for decoding, and for encoded chunks; see job_t and files_t */
    int64_t room_nbytes, max_gap_nbytes;
    int64_t most_nbytes;             /* a stored chunk that is longer is not read */
    int64_t n_read;                  /* result: number of bytes that were read */
} box_t;

/* The tables of a box: those of job_t, lookup_t and rows_t. */
typedef struct {
    int64_t pieces[3 * (MOST_BOX_CHUNKS + MOST_AXES)];
    int64_t first_piece[MOST_AXES], every[MOST_AXES], out_strides[MOST_AXES], ranges[2 * MOST_AXES];
    int64_t table[MOST_BOX_CHUNKS * (3 + MOST_AXES)];
    const char *src[MOST_BOX_CHUNKS];
    uint8_t left[MOST_BOX_CHUNKS];
} box_tables_t;

/* Fill in the fields of a job that describe the axes of its output. Return the number of chunks, or 0 if there are too many. */
static int64_t cut_box(const box_t *box, job_t *job, box_tables_t *tables)
{
    int64_t n_chunks = 1, n_pieces = 0, stride = job->out_itemsize;
    for (int64_t i = 0; i < job->ndim; i++) {
        const span_of_axis_t *axis = box->axes + i;
        n_chunks *= axis->n_pieces;
        if (n_chunks > MOST_BOX_CHUNKS) return 0;
        tables->first_piece[i] = n_pieces, tables->every[i] = axis->step;
        tables->ranges[2 * i] = 0, tables->ranges[2 * i + 1] = axis->n_pieces;
        n_pieces += axis->n_pieces;
    }
    for (int64_t i = job->ndim - 1; i >= 0; i--) {
        tables->out_strides[i] = stride;
        stride *= box->axes[i].count;
    }
    gpuzarr_cut_axes(box->axes, job->ndim, n_pieces, tables->pieces);
    job->n_pieces = n_pieces, job->pieces = tables->pieces, job->first_piece = tables->first_piece;
    job->every = tables->every, job->out_strides = tables->out_strides, job->out = box->out;
    return n_chunks;
}

/* Read a box of at most MOST_BOX_CHUNKS chunks. Return whether all of it has been placed. */
int64_t gpuzarr_read_box(box_t *box)
{
    static const int64_t path_at = 0;
    box_tables_t tables;
    job_t job = *box->job;
    int64_t n = cut_box(box, &job, &tables), *nbytes = tables.table + 2 * n;
    const int64_t *index[2] = {box->offset, box->nbytes};
    lookup_t lookup = {.ndim = job.ndim, .n_shards = 1, .n_rows = n, .axes = box->axes, .ranges = tables.ranges,
                       .table = tables.table};
    if (box->offset) lookup.index = index; /* without an index, the rows stay in C order */
    if (!n || gpuzarr_look_up(&lookup) < n) return 0; /* too many chunks; one is missing, or there is no memory */
    if (lookup.most_nbytes > box->most_nbytes) return 0;
    rows_t rows = {.src = tables.src, .nbytes = nbytes, .boxes = nbytes + n, .left = tables.left};
    if (box->decoded) {
        for (int64_t i = 0; i < n; i++) rows.src[i] = box->decoded[i], nbytes[i] = DECODED;
        return gpuzarr_place_rows(&job, &rows, 0, n, box->scratch, 1) == 0;
    }
    if (box->object) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t offset = box->offset ? tables.table[n + i] : 0;
            if (!box->offset) nbytes[i] = box->object_nbytes;
            if (offset < 0 || nbytes[i] < 0 || nbytes[i] > box->most_nbytes || offset > box->object_nbytes - nbytes[i]) return 0;
            rows.src[i] = box->object + offset;
            box->n_read += nbytes[i];
        }
        return gpuzarr_place_rows(&job, &rows, 0, n, box->scratch, 1) == 0;
    }
    if (!box->path || lookup.most_nbytes > box->room_nbytes) return 0;
    /* `table` begins with the shard of each row, which is 0 for all, and so is the number of the file */
    files_t files = {.paths = box->path, .path_at = &path_at, .file = tables.table, .room = box->room, .room_nbytes = box->room_nbytes,
                     .max_gap_nbytes = box->max_gap_nbytes, .most_nbytes = box->most_nbytes};
    if (box->offset) files.version = box->version, files.offset = tables.table + n;
    int64_t n_left = gpuzarr_read_rows(&job, &rows, &files, 0, n, box->scratch, 1);
    if (files.is_cold) { /* the first call has asked the disk for what was not in the page cache */
        files.waits = 1;
        n_left = gpuzarr_read_rows(&job, &rows, &files, 0, n, box->scratch, 1);
    }
    box->n_read = files.n_read;
    return n_left == 0;
}
