/* Parts of long raw chunks, which several threads read straight into the output. */

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
