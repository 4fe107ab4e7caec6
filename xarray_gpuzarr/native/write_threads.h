/* The threads of a write, which take one unit after another, and the calls of a write. */

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
