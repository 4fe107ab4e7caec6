/* Read rows: as many at once as one range of a file holds, straight into the output where that is possible. Chunks that are not
 * in the page cache are left to a call that waits, and the disk is asked for them ahead. */

enum { PART_NBYTES = 8 << 20 };   /* part of a raw chunk that one thread reads at once */
enum { ASKED_NBYTES = 32 << 20 }; /* most bytes that the disk is asked for ahead */

/* Return the place of a raw chunk in the output if it can be read straight to it; else NULL. */
static char *straight_to(const work_t *work, int64_t row)
{
    int is_run = is_copied(work->job) && is_direct(work->job, work->rows, row);
    return is_run ? destination(work->job, work->rows, first_box(work->rows, row)) : NULL;
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
    int64_t n = run.last - run.first, most = run.straight ? PART_NBYTES : work->files->room_nbytes, next = row;
    char *to = run.straight ? run.straight : room_of(lane, run.part_first >= 0 && n < most ? n : most);
    if (!to) {
        rows->src[row] = NULL;
        return row + 1;
    }
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
    char *to = room_of(lane, n);
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
        char *straight = straight_to(lane->work, row), *to = straight ? straight : room_of(lane, files->room_nbytes);
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
    rows->src[row] = is_open ? room_of(lane, piece_nbytes(lane->work->files)) : NULL;
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
