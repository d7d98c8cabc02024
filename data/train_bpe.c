// train_bpe: trains a byte-level BPE vocabulary on text files, as GPT-2's was.
//
//   make data/train_bpe && data/train_bpe --vocab_size 8192 --out mytok/ FILE...
//
// Writes mytok/tokenizer.json, vocab.json, merges.txt and tokenizer_config.json, which train_gpt,
// data/tokenize (--tokenizer mytok) and Hugging Face's tokenizers and transformers load. Ids: 256
// bytes, the merges in the order they were found, <|endoftext|>.
//
// How: the text is cut into pieces by GPT-2's pattern and every different piece is kept once, with
// its count. The most frequent pair of neighbouring tokens (of several: the one of lowest ids, as
// in Hugging Face's trainer, so that the merges are the same) becomes a token, in all pieces that
// have it; again, until the vocabulary is full. Each pair knows its pieces, and a heap knows the
// most frequent pair: its count there may be too large, as counts of old pairs only fall; then the
// pair goes back with its true count. 9 MB of English to 8,192 tokens take less than a second.
#define GPT_NO_MAIN
#include "../train_gpt.c"

enum { PIECE_MAX = 256 }; // longer pieces are counted in parts: they are no words

typedef struct { const char *s; uint32_t bytes, first, num_ids; uint64_t count; } Piece;
typedef struct { uint32_t left, right, first_use; uint64_t count; } Pair; // first_use 0: not used
typedef struct { uint32_t piece, next; } Use; // a piece that has, or once had, the pair
typedef struct { uint64_t count; uint32_t left, right; } Queued;

static Tokenizer made; // 256 bytes at first, and one token more with each merge
static Piece *pieces;  // hash table (pieces_mask + 1)
static Pair *pairs;    // hash table (pairs_mask + 1)
static size_t pieces_mask = 0xfff, num_pieces, pairs_mask = 0xfff, num_pairs;
static uint32_t *ids;  // of all pieces, one after the other
static Use *uses;
static size_t num_uses = 1, uses_room = 1 << 20; // use 0 ends a list
static Queued *heap;
static size_t num_queued, heap_room = 1 << 16;
static uint64_t min_count = 2;

// Doubles a hash table, *table, once more than half of it is taken. An entry that is not taken is
// all zero; place() says where in the new table an entry of the old one belongs.
static void table_grow(void *table, size_t *mask, size_t taken, size_t entry_bytes,
                       void *(*place)(const void *entry)) {
    static const char zero[sizeof(Piece) + sizeof(Pair)] = "";
    if (2 * taken <= *mask) return;
    size_t old_bytes = (*mask + 1) * entry_bytes;
    char *old, *fresh = (char *)host_alloc(2 * old_bytes);
    memcpy(&old, table, sizeof old);
    memcpy(table, &fresh, sizeof fresh);
    *mask = 2 * *mask + 1;
    for (char *entry = old; entry < old + old_bytes; entry += entry_bytes)
        if (memcmp(entry, zero, entry_bytes)) memcpy(place(entry), entry, entry_bytes);
    free(old);
}

// --- counting pieces ---
static Piece *piece_at(const char *s, size_t bytes) {
    uint64_t hash = 0xcbf29ce484222325u; // FNV-1a
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)s[i]) * 0x100000001b3u;
    size_t i = (size_t)(hash ^ hash >> 32) & pieces_mask;
    while (pieces[i].count && (pieces[i].bytes != bytes || memcmp(pieces[i].s, s, bytes)))
        i = (i + 1) & pieces_mask;
    return &pieces[i];
}
static void *piece_place(const void *entry) {
    const Piece *p = (const Piece *)entry;
    return piece_at(p->s, p->bytes);
}
static void piece_add(const char *s, size_t bytes, uint64_t count) {
    Piece *p = piece_at(s, bytes);
    if (p->count == 0) {
        Piece fresh = { s, (uint32_t)bytes, 0, 0, 0 };
        *p = fresh;
        num_pieces++;
    }
    p->count += count;
    table_grow(&pieces, &pieces_mask, num_pieces, sizeof *pieces, piece_place);
}
static void count_pieces(const char *text, size_t bytes) { // text must stay
    const size_t end_bytes = strlen(TOK_END);
    for (size_t at = 0; at < bytes; ) {
        const char *stop = (const char *)memmem(text + at, bytes - at, TOK_END, end_bytes);
        size_t end = stop ? (size_t)(stop - text) : bytes; // of this document
        while (at < end) {
            size_t piece = tok_piece(&made, text + at, end - at);
            for (size_t done = 0; done < piece; done += PIECE_MAX)
                piece_add(text + at + done, min_size(piece - done, PIECE_MAX), 1);
            at += piece;
        }
        if (stop) at += end_bytes;
    }
}

// --- pairs and the heap ---
static Pair *pair_at(uint32_t left, uint32_t right) {
    size_t i = (size_t)(((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u >> 32) & pairs_mask;
    while (pairs[i].first_use && (pairs[i].left != left || pairs[i].right != right))
        i = (i + 1) & pairs_mask;
    return &pairs[i];
}
static void *pair_place(const void *entry) {
    const Pair *p = (const Pair *)entry;
    return pair_at(p->left, p->right);
}
static void pair_add(uint32_t left, uint32_t right, uint64_t count, uint32_t piece) {
    Pair *p = pair_at(left, right);
    if (p->first_use == 0) {
        Pair fresh = { left, right, 0, 0 };
        *p = fresh;
        num_pairs++;
    }
    p->count += count;
    if (p->first_use == 0 || uses[p->first_use].piece != piece) {
        if (num_uses == uses_room) uses = (Use *)host_grow(uses, (uses_room *= 2) * sizeof *uses);
        check(num_uses < UINT32_MAX, EXIT_INPUT, "too many different pieces: %zu", num_pieces);
        uses[num_uses].piece = piece;
        uses[num_uses].next = p->first_use;
        p->first_use = (uint32_t)num_uses++;
    }
    table_grow(&pairs, &pairs_mask, num_pairs, sizeof *pairs, pair_place);
}
static int comes_before(Queued a, Queued b) {
    if (a.count != b.count) return a.count > b.count;
    return a.left != b.left ? a.left < b.left : a.right < b.right;
}
static void heap_push(uint32_t left, uint32_t right) { // unless its count is below --min_count
    Queued c = { pair_at(left, right)->count, left, right };
    if (c.count < min_count) return;
    if (num_queued == heap_room)
        heap = (Queued *)host_grow(heap, (heap_room *= 2) * sizeof *heap);
    size_t i = num_queued++;
    for (size_t up; i > 0 && comes_before(c, heap[up = (i - 1) / 2]); i = up) heap[i] = heap[up];
    heap[i] = c;
}
static Queued heap_pop(void) {
    Queued best = heap[0], c = heap[--num_queued];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < num_queued; i = child) {
        if (child + 1 < num_queued && comes_before(heap[child + 1], heap[child])) child++;
        if (!comes_before(heap[child], c)) break;
        heap[i] = heap[child];
    }
    heap[i] = c;
    return best;
}

// Puts id for every left, right in the piece. Counts of the other pairs are corrected; pairs with
// the new token are listed in fresh, to be pushed once all pieces are done.
static void piece_merge(Piece *p, uint32_t left, uint32_t right, uint32_t id, Text *fresh) {
    uint32_t *s = ids + p->first, num = 0, found = 0;
    for (uint32_t i = 0; i + 1 < p->num_ids; i++) found += s[i] == left && s[i + 1] == right;
    if (found == 0) return; // an earlier merge took the pair away
    for (uint32_t i = 0; i + 1 < p->num_ids; i++) pair_at(s[i], s[i + 1])->count -= p->count;
    for (uint32_t i = 0; i < p->num_ids; num++) {
        int is_pair = i + 1 < p->num_ids && s[i] == left && s[i + 1] == right;
        s[num] = is_pair ? id : s[i];
        i += is_pair ? 2 : 1;
    }
    p->num_ids = num;
    for (uint32_t i = 0; i + 1 < num; i++) {
        if (s[i] != id && s[i + 1] != id) { pair_at(s[i], s[i + 1])->count += p->count; continue; }
        if (!pair_at(s[i], s[i + 1])->first_use) text_add_bytes(fresh, s + i, 2 * sizeof *s);
        pair_add(s[i], s[i + 1], p->count, (uint32_t)(p - pieces));
    }
}
static void learn(size_t num_merges) {
    uint32_t num_ids = 0, parts[2];
    size_t all_bytes = 0, done = 0;
    for (size_t i = 0; i <= pieces_mask; i++) all_bytes += pieces[i].bytes;
    check(all_bytes < UINT32_MAX, EXIT_INPUT, "different pieces of %zu bytes", all_bytes);
    ids = (uint32_t *)host_alloc(all_bytes * sizeof *ids);
    pairs = (Pair *)host_alloc((pairs_mask + 1) * sizeof *pairs);
    uses = (Use *)host_alloc(uses_room * sizeof *uses);
    heap = (Queued *)host_alloc(heap_room * sizeof *heap);
    for (size_t i = 0; i <= pieces_mask; i++) {
        Piece *p = &pieces[i];
        p->first = num_ids;
        p->num_ids = p->bytes;
        for (uint32_t k = 0; k < p->bytes; k++, num_ids++) {
            ids[num_ids] = made.id_of_byte[(uint8_t)p->s[k]];
            if (k > 0) pair_add(ids[num_ids - 1], ids[num_ids], p->count, (uint32_t)i);
        }
    }
    for (size_t i = 0; i <= pairs_mask; i++)
        if (pairs[i].first_use) heap_push(pairs[i].left, pairs[i].right);
    while (done < num_merges && num_queued > 0) {
        Queued c = heap_pop();
        Pair *best = pair_at(c.left, c.right);
        if (best->count != c.count) { heap_push(c.left, c.right); continue; }
        const Token *l = &made.tokens[c.left], *r = &made.tokens[c.right];
        uint32_t id = made.vocab_size, use = best->first_use;
        Text fresh = { NULL, 0, 0 }, token = { NULL, 0, 0 };
        for (; use != 0; use = uses[use].next)
            piece_merge(&pieces[uses[use].piece], c.left, c.right, id, &fresh);
        for (size_t at = 0; at < fresh.count; at += sizeof parts) {
            memcpy(parts, fresh.at + at, sizeof parts);
            heap_push(parts[0], parts[1]);
        }
        text_add_bytes(&token, made.bytes.at + l->at, l->bytes);
        text_add_bytes(&token, made.bytes.at + r->at, r->bytes);
        tok_add(&made, id, token.at, token.count);
        tok_add_merge(&made, id, l->bytes);
        free(fresh.at), free(token.at);
        if (++done % 1000 == 0)
            fprintf(stderr, "%zu of %zu merges, the last one of %" PRIu64 " places\n", done,
                    num_merges, c.count);
    }
    if (done < num_merges) warn("%zu merges: no other pair has --min_count", done);
}
static void save(const char *folder) { // all files of it, or no folder
    char *part = text_of("%s.tmp", folder);
    int error = mkdir(part, 0777) != 0 && errno != EEXIST ? errno : 0;
    static const char *const files[] = { "tokenizer.json", "vocab.json", "merges.txt",
                                         "tokenizer_config.json" };
    for (int i = 0; i < 4 && !error; i++) {
        Text text = { NULL, 0, 0 };
        tok_text(&text, &made, files[i], 1024);
        error = write_text(part, files[i], &text);
        free(text.at);
    }
    if (!error && rename(part, folder) != 0) error = errno;
    if (error) remove_folder(part);
    check(error == 0, EXIT_IO, "%s: %s", folder, strerror(error));
    free(part);
}

int main(int argc, char **argv) {
    const char usage[] = "use: train_bpe [--vocab_size 8192] [--min_count 2] --out FOLDER FILE...";
    uint64_t vocab_size = 8192, all_bytes = 0, files = 0;
    char *folder = NULL;
    signal(SIGXFSZ, SIG_IGN); // a file that grows over `ulimit -f` is a write error
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-h")) argv[i] = (char *)"--help";
        if (strncmp(argv[i], "--", 2) != 0) { argv[files++] = argv[i]; continue; }
        char *end = NULL, *name = argv[i] + 2, *text;
        if (!strcmp(name, "help")) { puts(usage); check_stdout(); return 0; }
        if ((text = strchr(name, '=')) != NULL) *text++ = 0;
        else if (i + 1 < argc) text = argv[++i];
        check(text != NULL, EXIT_USAGE, "--%s: a value is missing; %s", name, usage);
        for (char *dash; (dash = strchr(name, '-')) != NULL; ) *dash = '_';
        if (!strcmp(name, "out")) { folder = text; continue; }
        uint64_t value = strtoull(text, &end, 10);
        check(isdigit((unsigned char)*text) && *end == 0, EXIT_USAGE, "--%s %s: wanted a number",
              name, text);
        if (!strcmp(name, "vocab_size")) vocab_size = value;
        else if (!strcmp(name, "min_count")) min_count = value > 0 ? value : 1;
        else die(EXIT_USAGE, "--%s: unknown; %s", name, usage);
    }
    check(folder != NULL && files > 0 && vocab_size >= 257 && vocab_size <= TOK_MAX_VOCAB,
          EXIT_USAGE, "%s (vocab_size: 257 to %d)", usage, TOK_MAX_VOCAB);
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; ) folder[--n] = 0;
    mkdir(folder, 0777); // a folder that is there must be empty; one that is not, possible
    check(rmdir(folder) == 0, EXIT_IO, "%s: %s", folder, strerror(errno));
    double start = now_ms();
    made = tok_new(vocab_size);
    made.name = text_of("%s", folder);
    tok_add_byte_tokens(&made);
    pieces = (Piece *)host_alloc((pieces_mask + 1) * sizeof *pieces);
    for (size_t bytes, i = 0; i < files; i++) {
        char *text = in_read_all(argv[i], (size_t)1 << 36, &bytes); // kept: the pieces point there
        count_pieces(text, bytes);
        all_bytes += bytes;
    }
    fprintf(stderr, "%" PRIu64 " bytes, %zu different pieces, %.1f s\n", all_bytes, num_pieces,
            (now_ms() - start) / 1e3);
    learn(vocab_size - 257);
    tok_add(&made, made.vocab_size, TOK_END, strlen(TOK_END));
    save(folder);
    printf("%s: %u tokens from %" PRIu64 " bytes in %.1f s\n", folder, made.vocab_size, all_bytes,
           (now_ms() - start) / 1e3);
    check_stdout();
    return 0;
}
