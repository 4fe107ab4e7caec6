/* The state of a call that reads: its rows, and the lane of each of its threads, with its memory. */

enum { STREAMED_NBYTES = 16 << 20 }; /* zstd chunks of at least this length are decoded while they are read */
enum { PIECE_NBYTES = 512 * 1024 };  /* bytes of such a chunk that are read at once */
enum { PAGE_NBYTES = 4096, HUGE_NBYTES = 4 << 20 }; /* of memory: a page, and the least that is worth huge pages */

/* The file of a row whose parts several threads read, all through one descriptor, so that they read one version. */
typedef struct {
    int64_t n_left; /* number of parts that have not been read */
    int file;       /* descriptor; NO_FILE: not opened yet, or it cannot be opened */
} shared_file_t;

/* The rows of a call, of which threads take one or some at a time, or parts of one. */
typedef struct {
    const job_t *job;
    const rows_t *rows;
    const files_t *files; /* NULL if `src` is set for all rows */
    int64_t n_parts;      /* number of parts of each row, which threads take one by one */
    int64_t first_row;
    shared_file_t *shared_files; /* of each row from `first_row` on; NULL: rows have one part, or their files a version */
    pthread_mutex_t opening;     /* held while a shared file is opened or closed */
    int64_t end_row;
    int64_t end, step;           /* number after that of the last part; parts that a thread takes at a time */
    atomic_llong next, n_read;   /* the part that is taken next; bytes that were read */
    atomic_int is_cold;      /* whether a range was not in the page cache; all further rows are left to a call that waits */
    atomic_llong asked;      /* the disk has been asked for the rows before this one */
    atomic_int is_changed;   /* whether a file has another version */
} work_t;

/* A lane: what one thread works with. */
typedef struct {
    work_t *work;
    char *scratch, *room; /* NULL if Python passed none, see `own_memory` */
    int file;             /* descriptor of file `number`; -1: none is open */
    int64_t number;
    char *own[2];         /* scratch and room that the lane has allocated itself, or NULL */
    int64_t own_room_nbytes; /* length of this room */
} lane_t;

/* Whether encoded chunks have the same bytes as the output. */
static int is_copied(const job_t *job)
{
    return job->codec == RAW && !job->n_stages && !job->n_checksums && !job->steps;
}

/* Whether chunks are decoded while they are read. */
static int is_streamed(const work_t *work)
{
    const job_t *job = work->job;
    return work->files && job->codec == ZSTD && !job->n_checksums && job->packed_nbytes >= STREAMED_NBYTES;
}

/* Return the number of bytes of scratch that a thread needs. */
static int64_t scratch_nbytes(const job_t *job) { return job->area_nbytes * (job->n_stages || job->inflate ? 2 : 1); }

/* Ask for huge pages for long memory, as NumPy does. Without them, each 4 KiB cost a page fault. Return the memory. */
static void *in_huge_pages(void *memory, int64_t nbytes)
{
#ifdef MADV_HUGEPAGE
    uintptr_t first = ((uintptr_t)memory + PAGE_NBYTES - 1) & ~(uintptr_t)(PAGE_NBYTES - 1);
    if (memory && nbytes >= HUGE_NBYTES) madvise((void *)first, (size_t)(nbytes - PAGE_NBYTES), MADV_HUGEPAGE);
#else
    (void)nbytes;
#endif
    return memory;
}

/* Return memory of a lane; NULL if there is none. Python does not pass long memory: the lane allocates it when it is needed. */
static char *own_memory(char **memory, char **own, int64_t nbytes)
{
    if (*memory) return *memory;
    *memory = *own = in_huge_pages(malloc((size_t)nbytes), nbytes);
    if (!*memory) errno = ENOMEM;
    return *memory;
}

static char *scratch_of(lane_t *lane) { return own_memory(&lane->scratch, &lane->own[0], scratch_nbytes(lane->work->job)); }

/* Return the number of bytes that are read at once of a chunk that is decoded while it is read. */
static int64_t piece_nbytes(const files_t *files)
{
    return files->room_nbytes < PIECE_NBYTES ? files->room_nbytes : PIECE_NBYTES;
}

/* Return memory for `nbytes` that a lane reads at once; NULL if there is none. What was read to it before is lost. */
static char *room_of(lane_t *lane, int64_t nbytes)
{
    if (lane->own[1] && lane->own_room_nbytes < nbytes) {
        free(lane->own[1]);
        lane->room = lane->own[1] = NULL;
    }
    if (!lane->room) lane->own_room_nbytes = nbytes;
    return own_memory(&lane->room, &lane->own[1], nbytes);
}
