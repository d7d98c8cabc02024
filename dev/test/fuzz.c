// fuzz.c: libFuzzer program for the readers of train_gpt.c. The environment chooses which:
//   FUZZ=shard        a token shard or a text: opened, checked, cut into windows, read
//   FUZZ=safetensors  a file of weights or of a run's state: header, tensors, metadata, flags
//   FUZZ=index        a model.safetensors.index.json; shards that it names are not there
//   FUZZ=config       a config.json, and the layout of the model that it describes
//   FUZZ=tokenizer    2 bytes n (little-endian), n bytes of text, a tokenizer file of any kind. The
//                     text must come back from its tokens; what is saved must load and encode alike
//   FUZZ=hellaswag    a file of examples: gone through, as before a run
//   make fuzz         builds it, and runs each for FUZZ_SECONDS from the seeds of fuzz.sh
// die() jumps back by die_recovers: a refusal is a return. What it leaves allocated is freed here.
#define _GNU_SOURCE // memfd_create
#include <stdlib.h>
#include <string.h>

typedef struct Block { struct Block *next, *prev; size_t bytes, unused; } Block;
static Block blocks = { &blocks, &blocks, 0, 0 };

static void *block_alloc(size_t bytes) {
    Block *b = (Block *)calloc(1, sizeof(Block) + bytes);
    if (b == NULL) return NULL;
    b->bytes = bytes;
    b->next = &blocks;
    b->prev = blocks.prev;
    b->prev->next = b->next->prev = b;
    return b + 1;
}
static void block_free(void *p) {
    if (p == NULL) return;
    Block *b = (Block *)p - 1;
    b->prev->next = b->next;
    b->next->prev = b->prev;
    free(b);
}
static void *block_calloc(size_t n, size_t bytes) {
    return block_alloc(n * bytes); // of host_alloc: n is all, bytes is 1
}
static void *block_realloc(void *p, size_t bytes) {
    void *larger = block_alloc(bytes);
    size_t had = p ? ((Block *)p - 1)->bytes : 0;
    if (larger == NULL) return NULL;
    if (p) memcpy(larger, p, had < bytes ? had : bytes);
    block_free(p);
    return larger;
}
#define calloc block_calloc
#define realloc block_realloc
#define free block_free
#define GPT_NO_MAIN
#include "../../train_gpt.c"

static void expect(int ok) { if (!ok) abort(); }

static void fuzz_shard(const char *path) {
    Tokenizer bytes = tok_load("bytes");
    Data d = data_open(path, &bytes, "bytes", bytes.vocab_size);
    data_cut(&d, 0, d.count, 4, "fuzzing");
    d.is_shuffled = 1;
    for (uint64_t k = 0; k < min_size(d.num_windows, 9); k++) {
        int32_t window[5];
        data_sample(&d, k * 7, window);
        for (int i = 0; i < 5; i++) expect(window[i] >= 0 && window[i] < 257);
    }
}
static void fuzz_safetensors(const char *path) {
    Ckpt c;
    State state;
    memset(&c, 0, sizeof c);
    st_open(&c.state, path);
    Config config = { 1, 1, 4, 4, 257, 384 };
    Layout y = layout_of(config);
    for (size_t i = 0; i < c.state.num_tensors; i++) {
        const StTensor *t = &c.state.tensors[i];
        free(st_bytes(&c.state, t));
        const ParamInfo *p = &y.params[i % NUM_PARAMS];
        jmp_buf *outer = die_recovers, here;
        die_recovers = &here;
        if (setjmp(here) == 0) {
            real *values = st_param(&c.state, p, t->name), sum = 0;
            for (size_t k = 0; k < p->rows * p->cols; k++) sum += values[k];
            static volatile real sink;
            sink = sum; // all is read
        }
        die_recovers = outer;
    }
    const char *saved = st_meta(&c.state, "flags");
    if (saved != NULL) {
        char *none[] = { (char *)"", NULL };
        Flags f = flags_parse(1, none);
        flags_merge_saved(&f, json_open(path, saved, strlen(saved)));
    }
    ckpt_state(&c, &state);
    st_close(&c.state);
}
static void fuzz_index(const char *path) {
    St st;
    st_open_index(&st, path);
    st_close(&st);
}
static void fuzz_config(const char *path) {
    Config c = config_read(path);
    expect(c.L >= 1 && c.C % c.NH == 0 && c.Vp % 128 == 0 && c.Vp >= c.V);
    Layout y = layout_of(c);
    expect(y.count >= y.num_parameters && y.count % PARTS == 0);
}
static void fuzz_hellaswag(const char *path) {
    Run run = {};
    run.flags.hellaswag = path;
    run.model.T = 8;
    run.model.config.V = 257;
    run.batch = (int32_t *)host_alloc(2 * run.model.T * sizeof(int32_t));
    hellaswag(&run, 1);
}
static size_t encode_back(const Tokenizer *t, const char *text, size_t bytes, uint32_t *ids) {
    size_t count = tok_encode(t, text, bytes, ids), at = 0, token_bytes;
    expect(count <= bytes);
    for (size_t i = 0; i < count; i++, at += token_bytes) {
        expect(ids[i] < t->vocab_size);
        const char *s = tok_bytes(t, ids[i], &token_bytes);
        expect(token_bytes <= bytes - at && memcmp(s, text + at, token_bytes) == 0);
    }
    expect(at == bytes);
    return count;
}
static void fuzz_tokenizer(const uint8_t *input, size_t size) {
    if (size < 2) return;
    size_t bytes = min_size(input[0] + 256u * input[1], size - 2), rest = size - 2 - bytes;
    char *text = (char *)host_alloc(bytes), *file = (char *)host_alloc(rest + 1); // exact: ASan
    uint32_t *ids = (uint32_t *)host_alloc(4 * bytes), *again = (uint32_t *)host_alloc(4 * bytes);
    memcpy(text, input + 2, bytes);
    memcpy(file, input + 2 + bytes, rest);
    Tokenizer t, saved;
    memset(&t, 0, sizeof t);
    memset(&saved, 0, sizeof saved);
    if (tok_parse(&t, "fuzz", file, rest)) return; // a vocab.json, whose merges are missing
    size_t count = encode_back(&t, text, bytes, ids);
    Text json = { NULL, 0, 0 };
    tok_text(&json, &t, "tokenizer.json", 1024);
    tok_parse(&saved, "saved", json.at, json.count);
    expect(count == encode_back(&saved, text, bytes, again));
    expect(memcmp(ids, again, 4 * count) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    static const char *target = NULL;
    if (target == NULL) target = getenv("FUZZ");
    if (target == NULL) { fprintf(stderr, "set FUZZ (see fuzz.c)\n"); abort(); }
    char path[64]; // a file that lives in memory only
    int file = memfd_create("fuzz", MFD_CLOEXEC);
    expect(file >= 0 && write(file, input, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    jmp_buf here;
    die_recovers = &here;
    if (setjmp(here) == 0) {
        if (!strcmp(target, "shard")) fuzz_shard(path);
        else if (!strcmp(target, "safetensors")) fuzz_safetensors(path);
        else if (!strcmp(target, "index")) fuzz_index(path);
        else if (!strcmp(target, "config")) fuzz_config(path);
        else if (!strcmp(target, "hellaswag")) fuzz_hellaswag(path);
        else fuzz_tokenizer(input, size);
    }
    die_recovers = NULL;
    for (int fd = file; fd < file + 4; fd++) close(fd); // a refusal leaves its file open
    while (blocks.next != &blocks) block_free(blocks.next + 1);
    return 0;
}
