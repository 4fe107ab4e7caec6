/* Contexts for decoding, which are kept from one call to the next. */

enum { MOST_KEPT = 8 }; /* contexts kept for each codec */

typedef void *make_t(void);
typedef void free_t(void *); /* the result is ignored */

/* Take an object, such as a context, out of those that were kept. Return NULL if there is none. */
static void *take_kept(_Atomic(void *) *kept, int n)
{
    void *found = NULL;
    for (int i = 0; i < n && !found; i++) found = atomic_exchange(&kept[i], NULL);
    return found;
}

/* Keep an object, such as a context, for later use. Return 0 if there is no place for it. */
static int keep(_Atomic(void *) *kept, int n, void *what)
{
    for (int i = 0; i < n; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&kept[i], &none, what)) return 1;
    }
    return 0;
}

/* Contexts for later lanes, by codec. Making one of zstd takes as long as decoding 8 KB. */
static _Atomic(void *) kept[N_CODECS][MOST_KEPT];

/* Return a context for decoding, one that was kept or a new one; NULL if the codec needs none, or there is no memory. */
static void *take_context(const job_t *job)
{
    if (!job->make_context) return NULL;
    void *context = take_kept(kept[job->codec], MOST_KEPT);
    return context ? context : ((make_t *)job->make_context)();
}

/* Keep a context for later lanes, or free it. */
static void give_context(const job_t *job, void *context)
{
    if (context && !keep(kept[job->codec], MOST_KEPT, context)) ((free_t *)job->free_context)(context);
}
