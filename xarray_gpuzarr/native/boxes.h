/* Boxes: the elements of a chunk that are requested, their places in the chunk and in the output, and copies between the two. */

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
