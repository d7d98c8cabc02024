// tokenize: from text to the token shards that train_gpt reads, without Python.
//
//   make data/tokenize
//   data/tokenize --tokenizer gpt2 --val_fraction 0.01 --out data/fineweb fineweb/*.jsonl
//   zcat big.txt.gz | data/tokenize --tokenizer gpt2 --split eot --out data/stories -
//   data/tokenize --tokenizer gpt2 --print_ids < prompt.txt
//   data/tokenize --check_overlap data/fineweb_train_*.bin data/fineweb_val_000000.bin
//
// Input: a file named *.jsonl or *.ndjson, or any input if --field is given, has one JSON object a
// line; the string of its field "text" (--field) is a document. Any other file is text: one
// document, or with --split blank one that ends after each empty line, or with --split eot
// documents with <|endoftext|> between them (elsewhere that is plain text). Empty documents are
// left out. "-" is standard input.
// Output: PREFIX_train_000000.bin and so on, and by a hash of the document's number
// PREFIX_val_000000.bin and so on: llm.c's format, a header of 256 int32 (20240520, 1, tokens) and
// uint16 tokens, or 20240801, 7 and uint32 for vocabularies above 65,536; <|endoftext|> before each
// document. Two more numbers of the header, 0 in llm.c's, are CRC-32Cs that train_gpt checks: of
// the vocabulary and of the tokens. A file is written as .tmp, synced, and renamed; files that
// exist are never replaced. A run that fails, or is stopped by a signal, removes its shards: it
// could not go on with them.
//
// Memory is constant: documents of any length go through two batches of parts of PART_BYTES. Parts
// are cut where GPT-2's pattern cuts in any case (safe_cut), so that the ids are those of the whole
// document. Only in a run of PART_BYTES without such a place (no space, no change between letters,
// numbers and others) the cut can change ids; there is one at every PART_BYTES then.
#define GPT_NO_MAIN
#include "../train_gpt.c"

enum { PART_BYTES = 1 << 18, TASK_BYTES = 1 << 16, READ_BYTES = 1 << 20, BATCH_PARTS = 1 << 16 };

typedef struct { size_t at, bytes, num_ids; uint64_t doc; int is_first; } Part;
typedef struct { // text, and its ids from ids[at] on for a part that starts at text[at]
    char *text;
    uint32_t *ids;
    Part *parts;
    size_t bytes, num_parts;
} Batch;
typedef struct {
    const char *kind;
    OutFile file;
    uint64_t in_shard, all;
    uint32_t crc; // of the shard's tokens so far
    int num_done;
} Shards;

static struct { const char *tokenizer, *field, *out, *split; double val_fraction;
                uint64_t shard_tokens; int is_jsonl, print_ids, check_overlap, ngram; } opt =
    { NULL, "text", "data/tokens", "none", 0, 100000000, 0, 0, 0, 13 };
static Tokenizer tok;
static Batch batches[2];
static int now = 0; // the batch being filled; the other one is being encoded
static size_t batch_bytes, part_at = 0; // the part that is being filled starts here
static int part_is_first = 1;           // of its document
static uint64_t num_docs, num_empty, num_halves, bytes_done, bytes_all;
static Text nowhere; // a string read to this is dropped
static Shards shards[2] = { { "train", { NULL, -1, 0, 0 }, 0, 0, 0, 0 },
                            { "val", { NULL, -1, 0, 0 }, 0, 0, 0, 0 } };
static double start_ms, shown_ms;
static int is_done = 0; // all shards are whole, and stay

// --- output ---
static void remove_shards(void) { // at any exit, and at a stop
    static char path[8192];
    for (int i = 0; i < 2 && !is_done; i++) for (int k = 0; k <= shards[i].num_done; k++) {
        snprintf(path, sizeof path, "%s_%s_%06d.bin%s", opt.out, shards[i].kind, k,
                 k < shards[i].num_done ? "" : ".tmp");
        unlink(path);
    }
}
// The stop signals are blocked in all threads and taken by one of their own, which waits until no
// name is changing: what is on the disk and what is counted are then the same.
static sigset_t stops;
static pthread_mutex_t names = PTHREAD_MUTEX_INITIALIZER; // held while that changes
static void *wait_for_stop(void *unused) {
    int number;
    sigwait(&stops, &number);
    pthread_mutex_lock(&names); // to the end
    remove_shards();
    _exit(128 + number);
    return unused;
}
static void watch_stops(void) { // before the other threads: they inherit what is blocked
    pthread_t thread;
    int kinds[] = { SIGINT, SIGTERM, SIGHUP };
    sigemptyset(&stops);
    for (int i = 0; i < 3; i++) {
        if (signal(kinds[i], SIG_DFL) == SIG_IGN && kinds[i] == SIGHUP) signal(SIGHUP, SIG_IGN);
        else sigaddset(&stops, kinds[i]); // else: under nohup
    }
    pthread_sigmask(SIG_BLOCK, &stops, NULL);
    int error = pthread_create(&thread, NULL, wait_for_stop, NULL);
    check(error == 0, EXIT_IO, "cannot start a thread: %s", strerror(error));
}
static void shard_close(Shards *s) {
    if (s->file.path == NULL) return;
    int is_wide = tok.vocab_size > 65536;
    int32_t header[256] = { is_wide ? SHARD_MAGIC_32 : SHARD_MAGIC_16,
                            is_wide ? SHARD_VERSION_32 : SHARD_VERSION_16, (int32_t)s->in_shard,
                            (int32_t)tok_crc(&tok), (int32_t)s->crc };
    char *path = text_of("%s", s->file.path); // "... .tmp"
    char *name = text_of("%.*s", (int)strlen(path) - 4, path);
    if (!s->file.error && pwrite(s->file.fd, header, sizeof header, 0) != sizeof header)
        s->file.error = errno ? errno : EIO;
    int error = out_close(&s->file);
    s->file.path = NULL;
    if (error == 0 && access(name, F_OK) == 0) error = EEXIST;
    pthread_mutex_lock(&names);
    if (error == 0 && rename(path, name) != 0) error = errno;
    s->num_done += error == 0;
    pthread_mutex_unlock(&names);
    check(error == 0, EXIT_IO, "%s: %s", name, strerror(error));
    if (isatty(2)) fprintf(stderr, "\r\x1b[K"); // the line of progress
    printf("%s: %" PRIu64 " tokens\n", name, s->in_shard);
    s->in_shard = 0;
    s->crc = 0;
    free(path);
    free(name);
}
static void shard_put(Shards *s, const uint32_t *ids, size_t count) {
    static char bytes[1 << 18];
    size_t width = tok.vocab_size > 65536 ? 4 : 2;
    while (count > 0) {
        if (s->file.path == NULL) {
            static const char header[SHARD_HEADER_BYTES] = "";
            char *path = text_of("%s_%s_%06d.bin.tmp", opt.out, s->kind, s->num_done);
            pthread_mutex_lock(&names);
            s->file = out_open(path);
            pthread_mutex_unlock(&names);
            free(path);
            out_write(&s->file, header, sizeof header);
        }
        size_t n = min_size(min_size(count, sizeof bytes / width), opt.shard_tokens - s->in_shard);
        for (size_t i = 0; i < n; i++) { // little endian, as all the machines we know
            uint16_t narrow = (uint16_t)ids[i];
            if (width == 2) memcpy(bytes + 2 * i, &narrow, 2);
            else memcpy(bytes + 4 * i, &ids[i], 4);
        }
        out_write(&s->file, bytes, n * width);
        if (s->file.error) shard_close(s); // reports it
        s->crc = crc32c(s->crc, ids, n * sizeof *ids);
        s->in_shard += n;
        s->all += n;
        ids += n;
        count -= n;
        if (s->in_shard == opt.shard_tokens) shard_close(s);
    }
}
static int is_val(uint64_t doc) { // SplitMix64 of the document's number
    uint64_t z = (doc + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53 < opt.val_fraction;
}

// --- batches: filled by this thread while the others encode the one before ---
static void batch_write(Batch *b) {
    uint32_t end_of_text = (uint32_t)tok.end_of_text;
    for (size_t i = 0; i < b->num_parts; i++) {
        Shards *s = &shards[is_val(b->parts[i].doc)];
        if (b->parts[i].is_first) shard_put(s, &end_of_text, 1);
        shard_put(s, b->ids + b->parts[i].at, b->parts[i].num_ids);
    }
    b->num_parts = b->bytes = 0;
}
static void encode_parts(Batch *b, size_t lo, size_t hi) {
    for (Part *p = b->parts + lo; p < b->parts + hi; p++)
        p->num_ids = tok_encode(&tok, b->text + p->at, p->bytes, b->ids + p->at);
}
static void show_progress(int is_end) {
    double ms = now_ms(), seconds = (ms - start_ms) / 1e3, left = 0;
    int is_terminal = isatty(2);
    if (!is_end && ms - shown_ms < (is_terminal ? 500 : 10000)) return;
    shown_ms = ms;
    if (bytes_all > bytes_done) left = seconds * ((double)bytes_all / (double)bytes_done - 1);
    fprintf(stderr, "%s%.1f MB", is_terminal ? "\r" : "", (double)bytes_done / 1e6);
    if (bytes_all > 0) fprintf(stderr, " of %.1f", (double)bytes_all / 1e6);
    fprintf(stderr, ", %" PRIu64 " documents, %" PRIu64 " tokens, %.1f MB/s, ", num_docs,
            shards[0].all + shards[1].all, (double)bytes_done / 1e6 / (seconds + 1e-9));
    if (bytes_all > 0 && !is_end) fprintf(stderr, "%.0f s left", left);
    else fprintf(stderr, "%.1f s", seconds);
    fprintf(stderr, "%s", is_terminal && !is_end ? "   " : "\n");
}
static void batch_flush(void) { // the text behind the last part moves to the other batch
    Batch *full = &batches[now], *next = &batches[1 - now];
    #pragma omp taskwait
    batch_write(next);
    for (size_t lo = 0, hi; lo < full->num_parts; lo = hi) {
        size_t bytes = 0;
        for (hi = lo; hi < full->num_parts && bytes < TASK_BYTES; hi++)
            bytes += full->parts[hi].bytes;
        #pragma omp task firstprivate(full, lo, hi)
        encode_parts(full, lo, hi);
    }
    next->bytes = full->bytes - part_at;
    memcpy(next->text, full->text + part_at, next->bytes);
    part_at = 0;
    now = 1 - now;
    show_progress(0);
}

// --- documents come in portions ---
// The last place in s that is a border between two pieces whatever stands around it: no piece has a
// letter or a number before a character of another class, or anything before a space. If there is
// none, the start of the last character.
static size_t safe_cut(const char *s, size_t bytes) {
    size_t at = bytes - 4; // the characters on both sides are complete
    for (; at > 4; at--) {
        uint32_t before, after;
        size_t back = 1;
        while (back < 4 && (s[at - back] & 0xc0) == 0x80) back++;
        if (utf8_get(&before, s + at - back, back) != back || before == UINT32_MAX) continue;
        utf8_get(&after, s + at, 4);
        if (after == UINT32_MAX) continue;
        int left = before < TOK_CODE_POINTS ? tok.class_of[before] : 0;
        int right = after < TOK_CODE_POINTS ? tok.class_of[after] : 0;
        if (left != right && left != TOK_SPACE && (left != 0 || right == TOK_SPACE)) return at;
    }
    for (at = bytes - 1; at > bytes - 4 && (s[at] & 0xc0) == 0x80; ) at--;
    return at;
}
static void part_close(size_t bytes) {
    Batch *b = &batches[now];
    Part p = { part_at, bytes, 0, num_docs, part_is_first };
    b->parts[b->num_parts++] = p;
    part_at += bytes;
    part_is_first = 0;
    if (b->bytes >= batch_bytes || b->num_parts == BATCH_PARTS) batch_flush();
}
static void doc_add(const char *s, size_t bytes) {
    while (bytes > 0) {
        Batch *b = &batches[now];
        size_t n = min_size(bytes, part_at + PART_BYTES - b->bytes);
        memcpy(b->text + b->bytes, s, n);
        b->bytes += n;
        s += n;
        bytes -= n;
        if (b->bytes - part_at == PART_BYTES) part_close(safe_cut(b->text + part_at, PART_BYTES));
    }
}
static void doc_end(void) {
    if (batches[now].bytes > part_at) part_close(batches[now].bytes - part_at);
    else if (part_is_first) num_empty++;
    num_docs += !part_is_first;
    part_is_first = 1;
}

// --- input: a stream of bytes; lines and documents may be longer than the buffer ---
typedef struct {
    const char *path;
    int fd;
    size_t at, end; // of what is left in buf
    uint64_t line;
    char buf[READ_BYTES];
} Input;

static int in_peek(Input *in) { // the next byte, or -1
    while (in->at == in->end) {
        ssize_t n = read(in->fd, in->buf, sizeof in->buf);
        if (n < 0 && errno == EINTR) continue;
        check(n >= 0, EXIT_IO, "%s: %s", in->path, strerror(errno));
        if (n == 0) return -1;
        in->at = 0;
        in->end = (size_t)n;
        bytes_done += (uint64_t)n;
    }
    return (unsigned char)in->buf[in->at];
}
static void read_text(Input *in) {
    int is_eot = !strcmp(opt.split, "eot");
    // A failed match need not be looked at again: the start of no border comes again in it.
    const char *border = is_eot ? TOK_END : "\n\n";
    size_t matched = 0;
    for (int c; (c = in_peek(in)) >= 0; ) {
        const char *s = in->buf + in->at;
        if (matched == 1 && !is_eot) border = c == '\r' ? "\n\r\n" : "\n\n";
        if (strcmp(opt.split, "none") == 0) {
            doc_add(s, in->end - in->at);
            in->at = in->end;
        } else if (c == border[matched]) {
            in->at++;
            if (border[++matched]) continue;
            if (!is_eot) doc_add(border, matched);
            doc_end();
            matched = 0;
        } else if (matched > 0) {
            doc_add(border, matched);
            matched = 0;
        } else {
            const char *next = (const char *)memchr(s, border[0], in->end - in->at);
            size_t bytes = next ? (size_t)(next - s) : in->end - in->at;
            doc_add(s, bytes);
            in->at += bytes;
        }
    }
    doc_add(border, matched);
    if (part_is_first == 0 || batches[now].bytes > part_at) doc_end();
}

static int in_skip_space(Input *in) { // within a line; the byte after it, or -1
    int c;
    while ((c = in_peek(in)) == ' ' || c == '\t' || c == '\r') in->at++;
    return c;
}
static void in_expect(Input *in, int c, const char *wanted) {
    int found = in_skip_space(in);
    check(found == c, EXIT_INPUT, "%s: line %" PRIu64 ": wanted %s, found %s%c", in->path, in->line,
          wanted, found < 0 ? "the end of the file" : found == '\n' ? "the end of the line" : "",
          found > 32 && found < 127 ? found : ' ');
    in->at++;
}
static uint32_t in_hex4(Input *in) {
    char digits[4];
    for (int i = 0; i < 4; i++) {
        int c = in_peek(in);
        check(c >= 0 && isxdigit(c), EXIT_INPUT, "%s: line %" PRIu64 ": wanted four hex digits "
              "after \\u", in->path, in->line);
        digits[i] = (char)c;
        in->at++;
    }
    Json j = json_open(in->path, digits, 4);
    return json_hex4(&j);
}
static void string_add(Text *out, const char *s, size_t bytes) { // NULL: to the document
    if (out == NULL) doc_add(s, bytes);
    else if (out != &nowhere) text_add_bytes(out, s, bytes);
}
// The string that starts here. Half of a surrogate pair has no place in UTF-8: it becomes U+FFFD.
static void read_string(Input *in, Text *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t", lost[] = "\xef\xbf\xbd";
    uint32_t high = 0; // the first half of a pair, if one was just read
    in_expect(in, '"', "a string");
    for (;;) {
        int c = in_peek(in), e = 0;
        check(c >= 0x20, EXIT_INPUT, "%s: line %" PRIu64 ": a string does not end", in->path,
              in->line);
        if (c == '\\') {
            in->at++;
            e = in_peek(in);
            check(e > 0 && strchr("u\"\\/bfnrt", e), EXIT_INPUT, "%s: line %" PRIu64 ": unknown "
                  "escape in a string", in->path, in->line);
            in->at++;
        }
        uint32_t u = e == 'u' ? in_hex4(in) : 0;
        int is_high = u >> 10 == 0x36, is_low = u >> 10 == 0x37; // 0xd800.., 0xdc00..
        if (high != 0 && is_low) u = 0x10000 + ((high - 0xd800) << 10) + (u - 0xdc00);
        else if (high != 0 || is_low) {
            string_add(out, lost, 3);
            num_halves++;
        }
        int is_done = is_high || (is_low && high == 0);
        high = is_high ? u : 0;
        if (is_done) continue;
        if (c == '"') break;
        if (e == 'u') {
            char utf8[4];
            string_add(out, utf8, utf8_put(u, utf8));
        } else if (c == '\\') string_add(out, to + (strchr(from, e) - from), 1);
        else {
            size_t bytes = 1, most = in->end - in->at;
            const char *s = in->buf + in->at;
            while (bytes < most && s[bytes] != '"' && s[bytes] != '\\' && (uint8_t)s[bytes] >= 0x20)
                bytes++;
            string_add(out, s, bytes);
            in->at += bytes;
        }
    }
    in->at++;
}
static void skip_value(Input *in) {
    size_t depth = 0;
    do {
        int c = in_skip_space(in), is_word = isalnum(c) || c == '-';
        if (c == '"') { read_string(in, &nowhere); continue; }
        check(is_word || (c > 0 && strchr(depth > 0 ? "{[}],:" : "{[", c)), EXIT_INPUT, "%s: line %"
              PRIu64 ": wanted a value", in->path, in->line);
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        in->at++;
        while (is_word && (c = in_peek(in)) > 0 && (isalnum(c) || strchr("+-.", c))) in->at++;
    } while (depth > 0);
}
static void read_jsonl(Input *in) {
    Text key = { NULL, 0, 0 };
    for (const char *mark = "\xef\xbb\xbf"; *mark && in_peek(in) == (uint8_t)*mark; mark++)
        in->at++; // U+FEFF, with which some programs begin a file
    for (in->line = 1; ; in->line++) {
        int c = in_skip_space(in), found = 0;
        if (c < 0) break;
        if (c == '\n') { in->at++; continue; }
        in_expect(in, '{', "{ at the start of a line of JSONL");
        for (int first = 1; in_skip_space(in) != '}'; first = 0) {
            if (!first) in_expect(in, ',', "a comma or }");
            key.count = 0;
            text_add_bytes(&key, "", 0); // also ends an empty key
            read_string(in, &key);
            in_expect(in, ':', "a colon");
            if (key.count != strlen(opt.field) || memcmp(key.at, opt.field, key.count)) {
                skip_value(in);
                continue;
            }
            check(!found++ && in_skip_space(in) == '"', EXIT_INPUT, "%s: line %" PRIu64 ": field "
                  "\"%s\": wanted one string", in->path, in->line, opt.field);
            read_string(in, NULL);
        }
        in->at++;
        check(found, EXIT_INPUT, "%s: line %" PRIu64 ": no field \"%s\" (--field)", in->path,
              in->line, opt.field);
        doc_end();
        if (in_skip_space(in) >= 0) in_expect(in, '\n', "the end of the line");
    }
    free(key.at);
}

// --- the two other uses ---
static void print_ids(Input *in) { // of one document, on one line
    Text text = { NULL, 0, 0 }, line = { NULL, 0, 0 };
    for (; in_peek(in) >= 0; in->at = in->end)
        text_add_bytes(&text, in->buf + in->at, in->end - in->at);
    uint32_t *ids = (uint32_t *)host_alloc(text.count * sizeof *ids);
    size_t count = tok_encode(&tok, text.at, text.count, ids);
    for (size_t i = 0; i < count; i++) {
        char number[16];
        text_add_bytes(&line, number, (size_t)sprintf(number, "%s%u", i ? " " : "", ids[i]));
    }
    text_add_bytes(&line, "\n", 1);
    fwrite(line.at, 1, line.count, stdout);
    free(text.at);
    free(line.at);
    free(ids);
}

// Leakage: how many of the n-grams of one shard's documents do others have too? N-grams are
// compared by a rolling 64-bit hash; none spans an <|endoftext|>: that of --tokenizer or, if not
// given, the first token of the last file, which has to start with a document then.
typedef struct { uint64_t hash, count; int found; } Gram;
static Gram *grams; // hash table (grams_mask + 1) of the last file's
static size_t grams_mask = 1;
static int32_t end_of_text = -1;

static void scan_grams(const char *path, int is_first) {
    enum { BLOCK = 1 << 16, MAX_NGRAM = 256 };
    static uint64_t window[MAX_NGRAM]; // the hashes of the last n tokens
    static int32_t block[BLOCK];
    static uint32_t vocabulary = 0; // of the files before; 0: not known
    Shard shard = shard_open(path);
    check(!vocabulary || !shard.vocabulary || shard.vocabulary == vocabulary, EXIT_INPUT,
          "%s: tokens of another vocabulary than the other file's", path);
    if (shard.vocabulary) vocabulary = shard.vocabulary;
    Data data;
    memset(&data, 0, sizeof data);
    data.shards = &shard;
    data.num_shards = 1;
    uint64_t n = (uint64_t)opt.ngram, hash = 0, power = 1, length = 0;
    if (!is_first) {
        while (grams_mask < 2 * shard.count) grams_mask = 2 * grams_mask + 1;
        grams = (Gram *)host_alloc((grams_mask + 1) * sizeof *grams);
    }
    for (uint64_t i = 0; i < n; i++) power *= TOK_MIX;
    for (uint64_t at = 0; at < shard.count; at++) {
        if (at % BLOCK == 0) data_read(&data, at, min_size(BLOCK, shard.count - at), block);
        int32_t token = block[at % BLOCK];
        if (end_of_text < 0) end_of_text = token;
        if (token == end_of_text) { length = hash = 0; continue; }
        uint64_t h = ((uint64_t)token + 1) * 0xbf58476d1ce4e5b9u, *old = &window[length % n];
        h ^= h >> 29;
        hash = hash * TOK_MIX + h - (length >= n ? *old * power : 0);
        *old = h;
        if (++length < n) continue;
        size_t i = (size_t)(hash ^ hash >> 32) & grams_mask;
        while (grams[i].count && grams[i].hash != hash) i = (i + 1) & grams_mask;
        if (is_first) { grams[i].found = 1; continue; }
        grams[i].hash = hash;
        grams[i].count++;
    }
    free(shard.path);
}
static void check_overlap(int files, char **paths) { // the last one's with all others'
    const char *b = paths[files - 1];
    uint64_t all = 0, found = 0, different = 0, different_found = 0;
    if (opt.tokenizer) end_of_text = tok.end_of_text;
    scan_grams(b, 0);
    for (int i = 0; i + 1 < files; i++) scan_grams(paths[i], 1);
    for (size_t i = 0; i <= grams_mask; i++) {
        if (!grams[i].count) continue;
        all += grams[i].count;
        different++;
        if (grams[i].found) { found += grams[i].count; different_found++; }
    }
    printf("%" PRIu64 " of %" PRIu64 " %d-grams of %s are in %s too: %.4f %%; of %" PRIu64
           " different ones %" PRIu64 "\n", found, all, opt.ngram, b,
           files == 2 ? paths[0] : "the files before it",
           100.0 * (double)found / (double)(all ? all : 1), different, different_found);
    free(grams);
}

// --- main ---
static const char usage[] =
    "use: data/tokenize [--tokenizer bytes|gpt2|FILE|FOLDER] [--out PREFIX] [--val_fraction 0.0]\n"
    "         [--shard_tokens 100000000] [--field text] [--split none|blank|eot] FILE...|-\n"
    "     data/tokenize [--tokenizer ...] --print_ids [FILE]\n"
    "     data/tokenize [--tokenizer ...] --check_overlap [--ngram 13] TRAIN.bin ... VAL.bin\n";

static double number(const char *name, const char *value, double least, double most) {
    char *end;
    double v = strtod(value, &end);
    check(*value && *end == 0 && v >= least && v <= most, EXIT_USAGE, "--%s %s: wanted %g to %g",
          name, value, least, most);
    return v;
}
static int read_flags(int argc, char **argv) { // the files move to argv[0]..; returns their number
    int files = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-h")) argv[i] = (char *)"--help";
        if (strncmp(argv[i], "--", 2) != 0) { argv[files++] = argv[i]; continue; }
        char *name = argv[i] + 2, *value = strchr(name, '=');
        if (value) *value++ = 0;
        for (char *c = name; *c; c++) if (*c == '-') *c = '_';
        if (!strcmp(name, "help")) { fputs(usage, stdout); check_stdout(); exit(0); }
        if (!strcmp(name, "print_ids")) { opt.print_ids = 1; continue; }
        if (!strcmp(name, "check_overlap")) { opt.check_overlap = 1; continue; }
        if (value == NULL && i + 1 < argc) value = argv[++i];
        check(value != NULL, EXIT_USAGE, "--%s: a value is missing; see --help", name);
        if (!strcmp(name, "tokenizer")) opt.tokenizer = value;
        else if (!strcmp(name, "out")) opt.out = value;
        else if (!strcmp(name, "field")) { opt.field = value; opt.is_jsonl = 1; }
        else if (!strcmp(name, "split")) opt.split = value;
        else if (!strcmp(name, "val_fraction")) opt.val_fraction = number(name, value, 0, 1);
        else if (!strcmp(name, "shard_tokens"))
            opt.shard_tokens = (uint64_t)number(name, value, 1, INT32_MAX);
        else if (!strcmp(name, "ngram")) opt.ngram = (int)number(name, value, 1, 256);
        else die(EXIT_USAGE, "--%s: unknown flag; see --help", name);
    }
    check(!strcmp(opt.split, "none") || !strcmp(opt.split, "blank") || !strcmp(opt.split, "eot"),
          EXIT_USAGE, "--split %s: wanted none, blank or eot", opt.split);
    return files;
}
static void read_file(const char *path) {
    static Input in;
    const char *dot = strrchr(path, '.');
    int is_jsonl = opt.is_jsonl || (dot && (!strcmp(dot, ".jsonl") || !strcmp(dot, ".ndjson")));
    int is_stdin = !strcmp(path, "-");
    in.path = is_stdin ? "standard input" : path;
    in.fd = is_stdin ? 0 : in_open(path).fd;
    in.at = in.end = 0;
    if (opt.print_ids) print_ids(&in);
    else if (is_jsonl) read_jsonl(&in);
    else read_text(&in);
    if (!is_stdin) close(in.fd);
}
static void prepare_output(void) {
    char *folder = text_of("%s", opt.out), *slash = strrchr(folder, '/');
    const char *base = slash ? opt.out + (slash - folder) + 1 : opt.out;
    if (slash) *slash = 0;
    if (slash && *folder && mkdir(folder, 0777) != 0)
        check(errno == EEXIST, EXIT_IO, "%s: %s", folder, strerror(errno));
    DIR *dir = opendir(slash == NULL ? "." : *folder ? folder : "/");
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL; ) {
        int end = 0; // of a shard's name; one of any number would be read with the new ones
        if (strncmp(e->d_name, base, strlen(base)) != 0) continue;
        const char *rest = e->d_name + strlen(base);
        sscanf(rest, "_train_%*[0-9].bin%n", &end);
        if (end == 0) sscanf(rest, "_val_%*[0-9].bin%n", &end);
        check(end == 0 || rest[end], EXIT_USAGE, "%s%s exists: remove it and the shards beside it, "
              "or choose another --out", opt.out, rest);
    }
    if (dir != NULL) closedir(dir);
    batch_bytes = (size_t)omp_get_max_threads() * 4 * PART_BYTES;
    for (int i = 0; i < 2; i++) {
        batches[i].text = (char *)host_alloc(batch_bytes + PART_BYTES);
        batches[i].ids = (uint32_t *)host_alloc((batch_bytes + PART_BYTES) * sizeof(uint32_t));
        batches[i].parts = (Part *)host_alloc(BATCH_PARTS * sizeof(Part));
    }
    free(folder);
    atexit(remove_shards);
    watch_stops();
}
static void make_shards(int files, char **argv) {
    int has_stdin = 0;
    check(tok.end_of_text >= 0, EXIT_INPUT, "%s: no token " TOK_END, tok.name);
    for (int i = 0; i < files; i++) {
        InFile f = { "", -1, 0, {} };
        if (!strcmp(argv[i], "-")) { has_stdin = 1; continue; }
        f = in_open(argv[i]);
        bytes_all += f.bytes;
        in_close(&f);
    }
    if (has_stdin) bytes_all = 0; // unknown
    prepare_output();
    start_ms = shown_ms = now_ms();
    #pragma omp parallel
    #pragma omp single
    {
        for (int i = 0; i < files; i++) read_file(argv[i]);
        batch_flush();
        batch_flush(); // writes what the first one encoded
    }
    for (int i = 0; i < 2; i++)
        check(shards[i].all > 0 || opt.val_fraction == (i == 0), EXIT_INPUT, "none of %" PRIu64
              " documents fell into the %s part: --split makes more documents of a text", num_docs,
              shards[i].kind);
    for (int i = 0; i < 2; i++) shard_close(&shards[i]);
    pthread_mutex_lock(&names);
    is_done = 1;
    pthread_mutex_unlock(&names);
    show_progress(1);
    if (num_empty > 0) warn("%" PRIu64 " empty documents were left out", num_empty);
    if (num_halves > 0) warn("%" PRIu64 " halves of surrogate pairs became U+FFFD", num_halves);
}
int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN); // a closed pipe is a write error,
    signal(SIGXFSZ, SIG_IGN); // and so is a file that grows over `ulimit -f`
    static char standard_input[] = "-";
    int files = read_flags(argc, argv);
    if (opt.print_ids && files == 0) argv[files++] = standard_input;
    check(!opt.check_overlap || files >= 2, EXIT_USAGE, "--check_overlap: wanted two files or "
          "more, got %d", files);
    check(files > 0 && (!opt.print_ids || files == 1), EXIT_USAGE, "%d files; see --help", files);
    if (!opt.check_overlap || opt.tokenizer) tok = tok_load(opt.tokenizer ? opt.tokenizer : "gpt2");
    if (opt.check_overlap) check_overlap(files, argv);
    else if (opt.print_ids) read_file(argv[0]);
    else make_shards(files, argv);
    check_stdout();
    tok_free(&tok);
    return 0;
}
