/* The tokenizer without Python: the cases of the text stack, hostile files, the work on long texts, token by token. The
 * wide comparison is tests/oracle/tokenizer.py. */
#include "test.h"
#include "base/file.h"
#include "base/utf8.h"
#include "text/tokenizer_int.h"
#include "text/unicode.h"

/* ---- helpers -------------------------------------------------------------------------------------------- */

static mx_tokenizer *parse(const char *json) {
    mx_tokenizer *t = NULL;
    mx_err err;
    CHECK_OK(mx_tokenizer_parse(&t, json, strlen(json), "test.json", &err), &err);
    return t;
}

/* The tokens of a text by their spelling, with | between them. */
static const char *tokens_of(const mx_tokenizer *t, const char *text, size_t len, unsigned flags) {
    static mx_str s;
    mx_ids ids = {0};
    mx_err err;
    CHECK_OK(mx_tokenizer_encode(t, text, len, flags, &ids, &err), &err);
    mx_str_clear(&s);
    for (size_t i = 0; i < ids.n; i++) {
        if (i) mx_str_putc(&s, '|');
        mx_str_puts(&s, mx_tokenizer_piece(t, ids.id[i]));
    }
    mx_ids_free(&ids);
    return s.p ? s.p : "";
}

static const char *tokens(const mx_tokenizer *t, const char *text) {
    return tokens_of(t, text, strlen(text), MX_TOK_PARSE_SPECIAL);
}

static const char *decoded(const mx_tokenizer *t, const int32_t *ids, size_t n, bool skip) {
    static mx_str s;
    mx_err err;
    mx_str_clear(&s);
    CHECK_OK(mx_tokenizer_decode(t, ids, n, skip, &s, &err), &err);
    return s.p ? s.p : "";
}

/* A tokenizer.json around a model, with or without the other parts. */
static const char *with(const char *model, const char *rest) {
    static mx_str s;
    mx_str_clear(&s);
    mx_str_printf(&s, "{\"model\": %s%s}", model, rest);
    return s.p;
}

/* The 256 byte symbols and the given merges, as a byte-level model. more: further members. */
static const char *byte_model(const char *extra_vocab, const char *merges, const char *more) {
    static mx_str s;
    mx_str_clear(&s);
    mx_str_puts(&s, "{\"type\": \"BPE\", \"vocab\": {");
    for (int b = 0; b < 256; b++) {
        char utf8[4];
        size_t n = mx_utf8_encode(mx_bl_char((uint8_t)b), utf8);
        if (b) mx_str_puts(&s, ", ");
        mx_json_put_string(&s, utf8, n);
        mx_str_printf(&s, ": %d", b);
    }
    mx_str_printf(&s, "%s}, \"merges\": %s%s}", extra_vocab, merges, more);
    return s.p;
}

#define BYTE_PARTS(pattern)                                                                                  \
    ", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "  \
    "{\"Regex\": \"" pattern                                                                                 \
    "\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", "                        \
    "\"add_prefix_space\": false, \"use_regex\": false}]}, \"decoder\": {\"type\": \"ByteLevel\"}"

static mx_tokenizer *byte_tokenizer(const char *more) {
    mx_str rest = {0};
    mx_str_puts(&rest,
                ", \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"decoder\": "
                "{\"type\": \"ByteLevel\"}");
    mx_str_puts(&rest, more);
    mx_tokenizer *t = parse(with(byte_model("", "[]", ""), rest.p));
    mx_str_free(&rest);
    return t;
}

static mx_tokenizer *demo(void) {
    mx_tokenizer *t = NULL;
    mx_err err;
    CHECK_OK(mx_tokenizer_open(&t, mx_test_path("models/demo"), &err), &err);
    return t;
}

/* ---- the cases ------------------------------------------------------------------------------------------ */

TEST(characters_come_out_whole)
{ // TOK-01
    mx_tokenizer *t = byte_tokenizer("");
    const char *text = "é한🙂 ok";
    mx_ids ids = {0};
    mx_err err;
    mx_detok *d;
    mx_str out = {0};
    CHECK_OK(mx_tokenizer_encode(t, text, strlen(text), 0, &ids, &err), &err);
    CHECK_INT(ids.n, strlen(text)); // one token a byte
    CHECK_OK(mx_detok_new(&d, t, false, &err), &err);
    size_t parts = 0;
    for (size_t i = 0; i < ids.n; i++) {
        size_t before = out.len;
        CHECK_OK(mx_detok_push(d, ids.id[i], &out, &err), &err);
        CHECK(mx_utf8_valid(out.p ? out.p + before : "", out.len - before) == out.len - before,
              "after token %zu", i);
        parts += out.len > before;
    }
    CHECK_STR(out.p, text);
    CHECK_INT(parts, 6); // é 한 🙂 space o k
    CHECK_OK(mx_detok_flush(d, &out, &err), &err);
    CHECK_STR(out.p, text);
    mx_str_clear(&out);
    CHECK_OK(mx_detok_push(d, ids.id[0], &out, &err), &err); // half of é and then the end
    CHECK_INT(out.len, 0);
    CHECK_OK(mx_detok_flush(d, &out, &err), &err);
    CHECK_STR(out.p, "\xEF\xBF\xBD");
    CHECK_STR(decoded(t, ids.id, ids.n, false), text);
    mx_detok_free(d);
    mx_str_free(&out);
    mx_ids_free(&ids);
    mx_tokenizer_free(t);
}

TEST(special_tokens_are_text_unless_asked_for)
{ // TOK-03
    mx_tokenizer *t = demo();
    const char *text = "x<|im_end|>y";
    int32_t end = mx_tokenizer_find(t, "<|im_end|>");
    mx_ids ids = {0};
    mx_err err;
    CHECK(end >= 0 && mx_tokenizer_is_special(t, end));
    CHECK_OK(mx_tokenizer_encode(t, text, strlen(text), 0, &ids, &err), &err);
    for (size_t i = 0; i < ids.n; i++) CHECK(!mx_tokenizer_is_special(t, ids.id[i]), "token %zu", i);
    CHECK_STR(decoded(t, ids.id, ids.n, true), text);
    ids.n = 0;
    CHECK_OK(mx_tokenizer_encode(t, text, strlen(text), MX_TOK_PARSE_SPECIAL, &ids, &err), &err);
    CHECK_INT(ids.n, 3);
    CHECK_INT(ids.id[1], end);
    CHECK_STR(decoded(t, ids.id, ids.n, true), "xy");
    CHECK_STR(decoded(t, ids.id, ids.n, false), text);
    mx_ids_free(&ids);
    mx_tokenizer_free(t);
}

TEST(ignore_merges_does_not_let_a_special_token_in)
{ // TOK-03 by another way
    const char *model = byte_model(", \"<x>\": 256", "[]", ", \"ignore_merges\": true");
    mx_tokenizer *t =
        parse(with(model, BYTE_PARTS(".+") ", \"added_tokens\": [{\"id\": 256, \"content\": \"<x>\", "
                                           "\"special\": true, \"normalized\": false}]"));
    CHECK_STR(tokens_of(t, "<x>", 3, 0), "<|x|>");
    CHECK_STR(tokens(t, "<x>"), "<x>");
    mx_tokenizer_free(t);
}

/* The pieces that a pattern cuts, as text with | between them. */
static const char *pieces(const mx_tokenizer *t, const char *text) {
    static mx_str s;
    mx_pre_state st = {0};
    mx_err err;
    mx_str_add(&st.text, text, strlen(text));
    mx_pieces_add(&st.pieces, (mx_piece){.len = (uint32_t)strlen(text), .id = -1, .first = true});
    CHECK_OK(mx_pretok_run(&t->pretok, &st, &err), &err);
    mx_str_clear(&s);
    for (size_t i = 0; i < st.pieces.n; i++) {
        if (i) mx_str_putc(&s, '|');
        mx_str_add(&s, st.text.p + st.pieces.p[i].off, st.pieces.p[i].len);
    }
    mx_pre_state_free(&st);
    return s.p ? s.p : "";
}

#define SPLIT_ONLY(pattern)                                                                                  \
    ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"" pattern                         \
    "\"}, \"behavior\": \"Isolated\", \"invert\": false}"

TEST(digits_split_as_the_pattern_says)
{ // TOK-05
    const char *text = "id50123x ٣٤٥٦ ½7",
               *model = "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}";
    mx_tokenizer *t = parse(with(model, SPLIT_ONLY("\\\\p{N}{1,3}")));
    CHECK_STR(pieces(t, text), "id|501|23|x |٣٤٥|٦| |½7");
    mx_tokenizer_free(t);
    t = parse(with(model, SPLIT_ONLY("\\\\p{N}")));
    CHECK_STR(pieces(t, text), "id|5|0|1|2|3|x |٣|٤|٥|٦| |½|7");
    mx_tokenizer_free(t);
    t = parse(
        with(model, SPLIT_ONLY("\\\\p{N}{1,3}+"))); // to Oniguruma the + repeats, it does not make possessive
    CHECK_STR(pieces(t, text), "id|50123|x |٣٤٥٦| |½7");
    mx_tokenizer_free(t);
}

TEST(merges_in_both_spellings)
{ // TOK-06
    static const char *const merges[] = {"[\"a b\"]", "[[\"a\", \"b\"]]"};
    mx_str s = {0};
    for (size_t i = 0; i < countof(merges); i++) {
        for (int ignore = 0; ignore < 2; ignore++) {
            mx_str_clear(&s);
            mx_str_printf(
                &s,
                "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\":0,\"b\":1,\"ab\":2,\"c\":3,\"abc\":4}, "
                "\"merges\": %s, \"ignore_merges\": %s}}",
                merges[i], ignore ? "true" : "false");
            mx_tokenizer *t = parse(s.p);
            CHECK_STR(tokens(t, "abc"), ignore ? "abc" : "ab|c");
            mx_tokenizer_free(t);
        }
    }
    mx_tokenizer *t =
        parse("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\":0,\" \":1,\"a \":2,\"b\":3,\"a b\":4}, "
              "\"merges\": [[\"a\", \" \"], [\"a \", \"b\"]]}}");
    CHECK_STR(tokens(t, "a b"), "a b");
    mx_tokenizer_free(t);
    mx_str_free(&s);
}

TEST(bytes_of_unknown_characters)
{ // TOK-07
    mx_str s = {0};
    mx_err err;
    mx_str_puts(&s, "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {");
    for (int b = 0; b < 256; b++) mx_str_printf(&s, "\"<0x%02X>\": %d, ", b, b);
    mx_str_puts(
        &s,
        "\"▁\": 256, \"h\": 257, \"i\": 258, \"hi\": 259, \"▁hi\": 260}, \"merges\": [[\"h\", \"i\"], [\"▁\", "
        "\"hi\"]]}, \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": "
        "\"▁\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"▁\"}]}, \"decoder\": "
        "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": \"▁\"}, "
        "\"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip\", "
        "\"content\": \" \", \"start\": 1, \"stop\": 0}]}}");
    mx_tokenizer *t = parse(s.p);
    CHECK_STR(tokens(t, "hi\nñ hi"), "▁hi|<0x0A>|<0xC3>|<0xB1>|▁hi");
    mx_ids ids = {0};
    CHECK_OK(mx_tokenizer_encode(t, "hi\nñ hi", 8, 0, &ids, &err), &err);
    CHECK_STR(decoded(t, ids.id, ids.n, false), "hi\nñ hi");
    int32_t broken[] = {260, 0xE9, 260};
    CHECK_STR(decoded(t, broken, 3, false), "hi\xEF\xBF\xBD hi");
    size_t n;
    const char *p = mx_tokenizer_bytes(t, 260, &n);
    CHECK(n == 3 && !memcmp(p, " hi", 3));
    p = mx_tokenizer_bytes(t, 0xE9, &n);
    CHECK(n == 1 && (unsigned char)*p == 0xE9);
    mx_ids_free(&ids);
    mx_str_free(&s);
    mx_tokenizer_free(t);
}

TEST(normal_forms)
{ // TOK-09
    static const struct {
        const char *kind, *text, *want;
    } cases[] = {{"NFC", "e\u0301", "é"},
                 {"NFC", "\u1112\u1161\u11AB", "한"},
                 {"NFC", "\u2126", "Ω"},
                 {"NFC", "½", "½"},
                 {"NFKC", "½", "1⁄2"},
                 {"NFD", "é", "e\u0301"},
                 {"NFC", "a\u0301\u0323", "ạ\u0301"}}; // marks are put in order first
    for (size_t i = 0; i < countof(cases); i++) {
        char rest[80];
        snprintf(rest, sizeof rest, ", \"normalizer\": {\"type\": \"%s\"}", cases[i].kind);
        mx_tokenizer *t = byte_tokenizer(rest);
        mx_ids ids = {0};
        mx_err err;
        CHECK_OK(mx_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), 0, &ids, &err), &err);
        CHECK_STR(decoded(t, ids.id, ids.n, false), cases[i].want);
        mx_ids_free(&ids);
        mx_tokenizer_free(t);
    }
}

/* ---- added tokens and post-processor -------------------------------------------------------------------- */

TEST(added_tokens_obey_their_flags)
{
    mx_tokenizer *t = byte_tokenizer(
        ", \"added_tokens\": [{\"id\": 256, \"content\": \"word\", \"single_word\": true, \"normalized\": false}, {\"id\": 257, "
        "\"content\": \"<l>\", \"lstrip\": true, \"normalized\": false}, {\"id\": 258, \"content\": \"<r>\", \"rstrip\": true, "
        "\"normalized\": false}, {\"id\": 259, \"content\": \"<r><l>\", \"normalized\": false}]");
    CHECK_STR(tokens(t, "a word"), "a|Ġ|word");
    CHECK_STR(tokens(t, "words"), "w|o|r|d|s");
    CHECK_STR(tokens(t, "éword"), "Ã|©|w|o|r|d");
    CHECK_STR(tokens(t, "a  <l> b"), "a|<l>|Ġ|b");
    CHECK_STR(tokens(t, "a <r>  b"), "a|Ġ|<r>|b");
    CHECK_STR(tokens(t, "<r><l><l>"), "<r><l>|<l>"); // the longest wins
    mx_tokenizer_free(t);
}

TEST(ids_of_added_tokens_may_leave_gaps)
{
    mx_tokenizer *t =
        byte_tokenizer(", \"added_tokens\": [{\"id\": 300, \"content\": \"<a>\", \"special\": true}]");
    size_t n;
    CHECK_INT(mx_tokenizer_find(t, "<a>"), 300);
    CHECK_INT(mx_tokenizer_size(t), 301);
    CHECK(mx_tokenizer_piece(t, 299) == NULL);
    mx_tokenizer_bytes(t, 299, &n);
    CHECK_INT(n, 0);
    int32_t ids[] = {'H' - '!', 299, 300, 5000};
    ids[0] = mx_tokenizer_find(t, "H");
    CHECK_STR(decoded(t, ids, 4, false), "H<a>"); // ids without a token give no text
    ids[1] = -1;
    mx_str s = {0};
    mx_err err;
    CHECK_FAILS(mx_tokenizer_decode(t, ids, 4, false, &s, &err), MX_EINVAL, &err, "negative");
    mx_str_free(&s);
    mx_tokenizer_free(t);
}

TEST(the_template_stands_around_the_text)
{
    mx_tokenizer *t = byte_tokenizer(
        ", \"added_tokens\": [{\"id\": 256, \"content\": \"<s>\", \"special\": true}], \"post_processor\": {\"type\": "
        "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "
        "\"type_id\": 0}}], \"pair\": [], \"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [256], \"tokens\": [\"<s>\"]}}}");
    CHECK_STR(tokens_of(t, "ab", 2, MX_TOK_ADD_SPECIAL), "<s>|a|b");
    CHECK_STR(tokens_of(t, "", 0, MX_TOK_ADD_SPECIAL), "<s>");
    CHECK_STR(tokens_of(t, "ab", 2, 0), "a|b");
    mx_tokenizer_free(t);
}

TEST(invalid_text_counts_as_the_replacement_character)
{
    mx_tokenizer *t = byte_tokenizer("");
    mx_ids ids = {0};
    mx_err err;
    CHECK_OK(mx_tokenizer_encode(t, "a\xF0\x9F\x99z\xFF", 6, 0, &ids, &err),
             &err); // one for the cut character
    CHECK_STR(decoded(t, ids.id, ids.n, false), "a\xEF\xBF\xBDz\xEF\xBF\xBD");
    mx_ids_free(&ids);
    mx_tokenizer_free(t);
}

/* ---- files that must be refused ------------------------------------------------------------------------- */

#define V "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}"

TEST(broken_files_are_refused_with_a_sentence)
{
    static const struct {
        const char *json, *part;
        mx_status status;
    } cases[] = {
        {"[]", "no tokenizer", MX_EINVAL},
        {"{}", "no tokenizer", MX_EINVAL},
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}", "Unigram", MX_UNSUPPORTED},
        {"{\"model\": {\"type\": 3}}", "type", MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", " V "}}", "merges", MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": [], \"merges\": []}}", "vocab", MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}", "id -1", MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1e99}, \"merges\": []}}", "whole number",
         MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 2000000000}, \"merges\": []}}", "2000000000",
         MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 9223372036854775807}, \"merges\": []}}", "id",
         MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}", "same id",
         MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": \"0\"}, \"merges\": []}}", "whole number",
         MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", " V ", \"merges\": [\"a x\"]}}", "\"x\" is not in the vocabulary",
         MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", " V ", \"merges\": [[\"b\", \"a\"]]}}", "\"ba\" is not", MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", " V ", \"merges\": [\"ab\"]}}", "one space", MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", " V ", \"merges\": [\"a b c\"]}}", "one space", MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", " V ", \"merges\": [[\"a\"]]}}", "neither", MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", " V ", \"merges\": [[\"a\", 1]]}}", "neither", MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", " V ", \"merges\": [null]}}", "neither", MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", " V ", \"merges\": [\"#version: 0.2\"]}}", "none of its 1",
         MX_EINVAL},
        {"{\"model\": {\"type\": \"BPE\", " V ", \"merges\": [], \"dropout\": 0.1}}", "dropout",
         MX_UNSUPPORTED},
        {"{\"model\": {\"type\": \"BPE\", " V ", \"merges\": [], \"fuse_unk\": 1}}", "fuse_unk", MX_EINVAL},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        mx_tokenizer *t = NULL;
        mx_err err = {0};
        mx_status st = mx_tokenizer_parse(&t, cases[i].json, strlen(cases[i].json), "f.json", &err);
        CHECK(st == cases[i].status && t == NULL, "case %zu: %s", i, err.msg);
        CHECK(strstr(err.msg, cases[i].part) && !strncmp(err.msg, "f.json: ", 8), "case %zu: %s", i, err.msg);
    }
}

TEST(unknown_parts_are_named)
{
    static const struct {
        const char *rest, *part;
        mx_status status;
    } cases[] = {
        {", \"normalizer\": {\"type\": \"Precompiled\"}", "Precompiled", MX_UNSUPPORTED},
        {", \"normalizer\": {}", "normalizer", MX_EINVAL},
        {", \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(\"}, \"content\": \"\"}",
         "pattern", MX_EINVAL},
        {", \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, \"content\": \"\"}",
         "empty", MX_EINVAL},
        {", \"normalizer\": {\"type\": \"Prepend\"}", "prepend", MX_EINVAL},
        {", \"normalizer\": 7", "normalizer", MX_EINVAL},
        {", \"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}", "UnicodeScripts", MX_UNSUPPORTED},
        {", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\p{Klingon}\"}, \"behavior\": \"Isolated\"}",
         "property", MX_UNSUPPORTED},
        {", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a\"}, \"behavior\": \"Isolated\"}",
         "class", MX_EINVAL},
        {", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Sideways\"}",
         "behavior", MX_UNSUPPORTED},
        {", \"pre_tokenizer\": {\"type\": \"FixedLength\", \"length\": 0}", "length", MX_EINVAL},
        {", \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"ab\"}", "one character",
         MX_EINVAL},
        {", \"decoder\": {\"type\": \"CTC\"}", "CTC", MX_UNSUPPORTED},
        {", \"decoder\": {\"type\": \"Strip\", \"content\": \"\", \"start\": 1, \"stop\": 0}", "Strip",
         MX_EINVAL},
        {", \"post_processor\": {\"type\": \"Magic\"}", "Magic", MX_UNSUPPORTED},
        {", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"B\"}}]}",
         "single", MX_EINVAL},
        {", \"added_tokens\": [{\"id\": -5, \"content\": \"x\"}]", "added_tokens", MX_EINVAL},
        {", \"added_tokens\": [{\"id\": 4000000000, \"content\": \"x\"}]", "added_tokens", MX_EINVAL},
        {", \"added_tokens\": [{\"id\": 3}]", "content", MX_EINVAL},
        {", \"added_tokens\": {}", "added_tokens", MX_EINVAL},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        mx_tokenizer *t = NULL;
        mx_err err = {0};
        const char *json = with("{\"type\": \"BPE\", " V ", \"merges\": [\"a b\"]}", cases[i].rest);
        mx_status st = mx_tokenizer_parse(&t, json, strlen(json), "f.json", &err);
        CHECK(st == cases[i].status && strstr(err.msg, cases[i].part), "case %zu: %d %s", i, st, err.msg);
    }
}

TEST(nesting_and_doubling_are_bounded)
{
    mx_str s = {0};
    mx_tokenizer *t = NULL;
    mx_err err;
    mx_str_puts(&s, ", \"normalizer\": ");
    for (int i = 0; i < 100; i++) mx_str_puts(&s, "{\"type\": \"Sequence\", \"normalizers\": [");
    mx_str_puts(&s, "{\"type\": \"NFC\"}");
    for (int i = 0; i < 100; i++) mx_str_puts(&s, "]}");
    const char *json = with("{\"type\": \"BPE\", " V ", \"merges\": []}", s.p);
    CHECK_FAILS(mx_tokenizer_parse(&t, json, strlen(json), "f", &err), MX_ELIMIT, &err, "nested");
    mx_str_clear(&s);
    mx_str_puts(&s, ", \"post_processor\": {\"type\": \"Sequence\", \"processors\": [");
    for (int i = 0; i < 40; i++) { // 2^40 copies of the text
        mx_str_puts(&s, i ? ", " : "");
        mx_str_puts(
            &s,
            "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}, {\"Sequence\": "
            "{\"id\": \"A\"}}], \"special_tokens\": {}}");
    }
    mx_str_puts(&s, "]}");
    json = with("{\"type\": \"BPE\", " V ", \"merges\": []}", s.p);
    CHECK_FAILS(mx_tokenizer_parse(&t, json, strlen(json), "f", &err), MX_ELIMIT, &err, "more than");
    mx_str_free(&s);
}

TEST(a_pattern_that_never_ends_gives_up)
{
    const char *json = with("{\"type\": \"BPE\", " V ", \"merges\": []}", SPLIT_ONLY("(a|aa)+[bc]"));
    mx_tokenizer *t = parse(json);
    mx_ids ids = {0};
    mx_err err;
    char text[400];
    memset(text, 'a', sizeof text);
    CHECK_FAILS(mx_tokenizer_encode(t, text, sizeof text, 0, &ids, &err), MX_ELIMIT, &err, "gave up");
    CHECK_INT(ids.n, 0);
    mx_ids_free(&ids);
    mx_tokenizer_free(t);
}

/* ---- long texts ----------------------------------------------------------------------------------------- */

/* Steps of merging n characters of a text that repeats `unit`, per character. */
static double steps_per_char(const mx_tokenizer *t, const char *unit, size_t n) {
    mx_str s = {0};
    mx_bpe_scratch scratch = {0};
    mx_ids ids = {0};
    mx_err err;
    while (s.len < n) mx_str_puts(&s, unit);
    CHECK_OK(mx_bpe_encode(&t->bpe, &scratch, s.p, s.len, false, &ids, &err), &err);
    double steps = (double)scratch.steps / (double)s.len;
    mx_bpe_scratch_free(&scratch);
    mx_ids_free(&ids);
    mx_str_free(&s);
    return steps;
}

TEST(work_grows_with_the_text_not_its_square)
{
    mx_tokenizer *t = demo();
    static const char *const units[] = {"a", "ab", "the", "Ġ", "ĠthisĠisĠaĠlongĠline", "Ċ", "0", "eee1"};
    for (size_t i = 0; i < countof(units); i++) {
        double few = steps_per_char(t, units[i], 1000), many = steps_per_char(t, units[i], 256000);
        CHECK(many <= few * 1.1 + 0.1 && many <= 4, "%s: %g steps a character, then %g", units[i], few, many);
    }
    mx_tokenizer_free(t);
}

TEST(long_and_short_words_merge_alike)
{ // the two ways of merging: a word of 39 symbols, then of 40 and more
    mx_tokenizer *t = demo();
    uint64_t seed = 5;
    for (int round = 0; round < 200; round++) {
        mx_bpe_scratch a = {0};
        mx_ids whole = {0};
        mx_err err;
        char word[200];
        size_t n = 30 + mx_test_rand(&seed) % 160;
        for (size_t i = 0; i < n; i++) word[i] = "etaoinshrdlu"[mx_test_rand(&seed) % 12];
        CHECK_OK(mx_bpe_encode(&t->bpe, &a, word, n, false, &whole, &err), &err);
        /* The reference: merge the lowest pair, leftmost first, until there is none. */
        int32_t sym[200];
        size_t left = n;
        for (size_t i = 0; i < n; i++) sym[i] = t->bpe.char_id[(unsigned char)word[i]];
        for (;;) {
            uint32_t best = UINT32_MAX;
            size_t at = 0;
            int32_t to = -1;
            for (size_t i = 0; i + 1 < left; i++) {
                for (size_t k = 0; k <= t->bpe.merge_mask; k++) {
                    const mx_merge *m = &t->bpe.merge[k];
                    if (m->left == (uint32_t)sym[i] && m->right == (uint32_t)sym[i + 1] && m->rank < best)
                        best = m->rank, at = i, to = m->to;
                }
            }
            if (best == UINT32_MAX) break;
            sym[at] = to;
            memmove(sym + at + 1, sym + at + 2, (left - at - 2) * sizeof *sym);
            left--;
        }
        CHECK_INT(whole.n, left);
        CHECK(!memcmp(whole.id, sym, left * sizeof *sym), "round %d", round);
        mx_bpe_scratch_free(&a);
        mx_ids_free(&whole);
    }
    mx_tokenizer_free(t);
}

TEST(every_text_comes_back)
{ // random bytes through a byte-level model, whole and token by token
    mx_tokenizer *t = demo();
    uint64_t seed = 11;
    for (int round = 0; round < 500; round++) {
        char text[120];
        size_t n = mx_test_rand(&seed) % sizeof text;
        bool ascii = round % 2;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(ascii ? 1 + mx_test_rand(&seed) % 126 : mx_test_rand(&seed));
        mx_str want = {0}, parts = {0};
        mx_ids ids = {0};
        mx_err err;
        mx_detok *d;
        mx_utf8_repair(&want, text, n);
        CHECK_OK(mx_tokenizer_encode(t, text, n, MX_TOK_PARSE_SPECIAL, &ids, &err), &err);
        CHECK_OK(mx_detok_new(&d, t, false, &err), &err);
        for (size_t i = 0; i < ids.n; i++) CHECK_OK(mx_detok_push(d, ids.id[i], &parts, &err), &err);
        CHECK_OK(mx_detok_flush(d, &parts, &err), &err);
        if (ascii) CHECK_STR(parts.p ? parts.p : "", want.p ? want.p : ""); // NFC may rewrite the others
        CHECK_STR(parts.p ? parts.p : "", decoded(t, ids.id, ids.n, false));
        mx_detok_free(d);
        mx_ids_free(&ids);
        mx_str_free(&want);
        mx_str_free(&parts);
    }
    mx_tokenizer_free(t);
}

/* ---- other files ---------------------------------------------------------------------------------------- */

static void write_in(const char *dir, const char *name, const char *text, size_t len) {
    mx_arena a = {0};
    mx_err err;
    CHECK_OK(mx_file_write(mx_path_join(&a, dir, name), text, len, &err), &err);
    mx_arena_free(&a);
}

/* A new folder in the temporary one; name: what for. */
static const char *folder(const char *name) {
    static mx_str s;
    mx_err err;
    mx_str_clear(&s);
    mx_str_printf(&s, "%s/%s", mx_test_tmpdir(), name);
    CHECK_OK(mx_mkdirs(s.p, &err), &err);
    return s.p;
}

TEST(vocab_and_merges_files)
{
    const char *dir = folder("gpt2");
    mx_err err;
    mx_tokenizer *t = NULL;
    CHECK_FAILS(mx_tokenizer_open(&t, dir, &err), MX_ENOTFOUND, &err, "no tokenizer");
    mx_str s = {0};
    const char *model = byte_model(", \"he\": 256, \"Ġhe\": 257, \"<|endoftext|>\": 258", "[]", "");
    const char *vocab = strstr(model, "\"vocab\": ") + 9;
    mx_str_add(&s, vocab, (size_t)(strstr(vocab, "}, \"merges\"") + 1 - vocab));
    write_in(dir, "vocab.json", s.p, s.len);
    write_in(dir, "merges.txt", "#version: 0.2\nh e\nĠ he\n", strlen("#version: 0.2\nh e\nĠ he\n"));
    CHECK_OK(mx_tokenizer_open(&t, dir, &err), &err);
    CHECK_STR(tokens(t, "he he<|endoftext|>"), "he|Ġhe|<|endoftext|>");
    mx_tokenizer_free(t);
    const char *config = "{\"tokenizer_class\": \"OddTokenizer\"}";
    write_in(dir, "tokenizer_config.json", config, strlen(config));
    CHECK_FAILS(mx_tokenizer_open(&t, dir, &err), MX_UNSUPPORTED, &err, "OddTokenizer");
    config =
        "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"added_tokens_decoder\": {\"300\": {\"content\": \"<t>\", \"special\": true}}}";
    write_in(dir, "tokenizer_config.json", config, strlen(config));
    CHECK_OK(mx_tokenizer_open(&t, dir, &err), &err);
    CHECK_INT(mx_tokenizer_find(t, "<t>"), 300);
    mx_tokenizer_free(t);
    write_in(dir, "merges.txt", "h x\n", 4);
    CHECK_FAILS(mx_tokenizer_open(&t, dir, &err), MX_EINVAL, &err, "not in the vocabulary");
    mx_str_free(&s);
}

TEST(tiktoken_files_of_unknown_kind)
{
    const char *dir = folder("tiktoken");
    mx_err err;
    mx_tokenizer *t = NULL;
    write_in(dir, "tokenizer.model", "\n\x0e\n\x05<unk>", 9);
    CHECK_FAILS(mx_tokenizer_open(&t, dir, &err), MX_UNSUPPORTED, &err, "SentencePiece");
    write_in(dir, "tokenizer.model", "IQ== 0\nIg== x\n", 14);
    CHECK_FAILS(mx_tokenizer_open(&t, dir, &err), MX_EINVAL, &err, "line 2");
    write_in(dir, "tokenizer.model", "I*== 0\n", 7);
    CHECK_FAILS(mx_tokenizer_open(&t, dir, &err), MX_EINVAL, &err, "base64");
    write_in(dir, "tokenizer.model", "IQ== 0\n", 7);
    CHECK_FAILS(mx_tokenizer_open(&t, dir, &err), MX_EINVAL, &err, "no token for the byte 0x00");
    mx_str s = {0};
    static const char b64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int b = 0; b < 256; b++) mx_str_printf(&s, "%c%c== %d\n", b64[b >> 2], b64[(b & 3) << 4], b);
    write_in(dir, "tokenizer.model", s.p, s.len);
    CHECK_FAILS(mx_tokenizer_open(&t, dir, &err), MX_UNSUPPORTED, &err, "256 entries");
    mx_str_free(&s);
}

TEST(tekken_files)
{
    const char *dir = folder("tekken");
    mx_err err;
    mx_tokenizer *t = NULL;
    mx_str s = {0};
    static const char b64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    mx_str_puts(
        &s,
        "{\"config\": {\"pattern\": \"[a-z]+|.\", \"default_vocab_size\": 288, \"default_num_special_tokens\": 30}, "
        "\"vocab\": [");
    for (int b = 0; b < 256; b++) {
        mx_str_printf(&s, "{\"rank\": %d, \"token_bytes\": \"%c%c==\"}, ", b, b64[b >> 2], b64[(b & 3) << 4]);
    }
    mx_str_puts(
        &s,
        "{\"rank\": 256, \"token_bytes\": \"YWI=\"}, {\"rank\": 257, \"token_bytes\": \"YmM=\"}, {\"rank\": 258, "
        "\"token_bytes\": \"YWJj\"}]}"); // ab, bc, abc: the last is beyond the vocabulary that the model uses
    write_in(dir, "tekken.json", s.p, s.len);
    CHECK_OK(mx_tokenizer_open(&t, dir, &err), &err);
    CHECK_STR(tokens(t, "abc[INST]b"), "ab|c|[INST]|b");
    CHECK_STR(tokens_of(t, "a", 1, MX_TOK_ADD_SPECIAL), "<s>|a");
    CHECK_INT(mx_tokenizer_find(t, "<SPECIAL_25>"), 25);
    CHECK_INT(mx_tokenizer_find(t, "ab"), 286);
    CHECK_INT(mx_tokenizer_size(t), 288);
    mx_tokenizer_free(t);
    mx_str_free(&s);
}
