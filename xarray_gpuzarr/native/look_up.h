/* Look up chunks in the indexes of shards: which chunks a selection touches, and where these are stored. */

enum { ENTRY_NBYTES = 16 }; /* of an index: offset and length of a chunk */

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
