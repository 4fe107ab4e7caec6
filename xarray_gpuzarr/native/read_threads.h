/* The threads of a call that reads, and the calls themselves. */

enum { MOST_THREADS = 64 };                  /* of a call */
enum { GRABS_A_THREAD = 8, MOST_STEP = 32 }; /* how often a thread takes rows of a call; most rows that it takes at a time */

/* Read, decode and place rows [row, end), except rows that are done, or left to a call that waits for the disk. */
static void read_and_place_rows(lane_t *lane, int64_t row, int64_t end, void *context)
{
    const work_t *work = lane->work;
    int waits = work->files && work->files->waits;
    while (row < end) {
        if (work->is_cold) work->rows->left[row] = LEFT;
        if (work->is_cold || (waits && work->rows->left[row] == DONE)) {
            row++;
            continue;
        }
        for (int64_t stop = read_next_rows(lane, row, end); row < stop; row++) finish_row(lane, row, context);
    }
}

/* Take rows or parts of rows, read and place them on this thread, until all have been taken. */
static void *run_lane(void *argument)
{
    lane_t *lane = argument;
    work_t *work = lane->work;
    void *context = take_context(work->job);
    int64_t part; /* number of a part among those of all rows; a row, if each has one part */
    while ((part = atomic_fetch_add(&work->next, work->step)) < work->end) {
        int64_t end = part + work->step < work->end ? part + work->step : work->end;
        if (work->n_parts > 1) {
            read_and_place_part(lane, part / work->n_parts, part % work->n_parts);
            release_shared_file(work, part / work->n_parts);
        } else {
            read_and_place_rows(lane, part, end, context);
        }
    }
    give_context(work->job, context);
    close_file(lane);
    free(lane->own[0]), free(lane->own[1]);
    return NULL;
}

/* Return lane number `i`, with its share of the memory of all threads. */
static lane_t lane_of(work_t *work, char *scratch, int64_t i)
{
    char *room = work->files && work->files->room ? work->files->room + i * work->files->room_nbytes : NULL;
    return (lane_t){work, scratch ? scratch + i * scratch_nbytes(work->job) : NULL, room, -1, 0, {NULL, NULL}, 0};
}

/* Call `run` with each argument, on the calling thread and up to n_threads - 1 new ones, or fewer if the system starts no more.
 * Threads end with this call. Starting one takes 20 us, and none of them ever waits for the GIL. */
static void run_threads(void *(*run)(void *), void *arguments, size_t argument_nbytes, int64_t n_threads)
{
    pthread_t threads[MOST_THREADS];
    sigset_t all, before;
    int64_t n = 0;
    if (n_threads > 1) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are delivered to Python's threads */
        for (; n < n_threads - 1; n++)
            if (pthread_create(&threads[n], NULL, run, (char *)arguments + (size_t)(n + 1) * argument_nbytes)) break;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    run(arguments);
    while (n > 0) pthread_join(threads[--n], NULL);
}

/* Read and place rows [row, end) on up to n_threads threads. Return the number of rows that were left. */
static int64_t run_lanes(work_t *work, int64_t row, int64_t end, char *scratch, int64_t n_threads)
{
    lane_t lanes[MOST_THREADS];
    int64_t n_left = 0;
    if (!cut_rows(work, row, end)) {
        memset(work->rows->left + row, LEFT, (size_t)(end - row));
        return end - row;
    }
    work->next = row * work->n_parts;
    work->asked = row;
    work->end_row = end;
    work->end = end * work->n_parts;
    if (n_threads > work->end - work->next) n_threads = work->end - work->next;
    if (n_threads > MOST_THREADS) n_threads = MOST_THREADS;
    if (n_threads < 1) n_threads = 1;
    for (int64_t i = 0; i < n_threads; i++) lanes[i] = lane_of(work, scratch, i);
    run_threads(run_lane, lanes, sizeof *lanes, n_threads);
    free(work->shared_files);
    for (int64_t i = row; i < end; i++) n_left += work->rows->left[i] != DONE;
    return n_left;
}

/* Decode and place rows [row, end) on up to n_threads threads, each with its areas of scratch. Return the number of rows that
 * were left. */
int64_t gpuzarr_place_rows(const job_t *job, const rows_t *rows, int64_t row, int64_t end, char *scratch, int64_t n_threads)
{
    work_t work = {.job = job, .rows = rows, .step = 1, .opening = PTHREAD_MUTEX_INITIALIZER};
    return run_lanes(&work, row, end, scratch, n_threads);
}

/* Read rows, then treat them like gpuzarr_place_rows. All stored rows are left if a file has another version. Rows that are not
 * in the page cache are left unless `waits` is set. Return the number of rows that were left. */
int64_t gpuzarr_read_rows(
    const job_t *job, const rows_t *rows, files_t *files, int64_t row, int64_t end, char *scratch, int64_t n_threads)
{
    work_t work = {.job = job, .rows = rows, .files = files, .step = 1, .opening = PTHREAD_MUTEX_INITIALIZER};
    if (files->offset) {
        work.step = (end - row) / (n_threads * GRABS_A_THREAD);
        if (work.step < 1) work.step = 1;
        if (work.step > MOST_STEP) work.step = MOST_STEP;
    }
    int64_t n_left = run_lanes(&work, row, end, scratch, n_threads);
    files->n_read += work.n_read;
    files->is_cold = work.is_cold && !work.is_changed;
    if (!work.is_changed) return n_left;
    n_left = 0;
    for (; row < end; row++)
        if (rows->nbytes[row] != NO_FILE) rows->left[row] = LEFT, n_left++;
    return n_left;
}
