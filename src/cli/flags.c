/* flags.c - every flag of the program: one row, which the parser, the environment and the help share. */
#include "cli/cli.h"
#include <float.h>
#include <limits.h>

#define OFF(field) offsetof(cli_options, field)
#define CHATS (C_RUN | C_GENERATE)
#define ENGINES (CHATS | C_VERIFY | C_BENCH)
#define EVERY (ENGINES | C_TOKENIZE | C_INSPECT | C_LIST | C_RM | C_PULL | C_CONVERT | C_DEVICES)
#define BIG FLT_MAX

static const char MODEL[] = "Model and device:", PROMPT[] = "Prompt:", ANSWER[] = "Answer:",
                  SAMPLING[] = "Sampling:", OUTPUT[] = "Output:", FLAGS[] = "Flags:", GATE[] = "Gate:",
                  TESTS[] = "Tests (a list, \"128,512\", runs each; a flag may be repeated):";

// clang-format off
const arg_flag cli_flags[] = {
    // names, type, offset, min, max, default, value, choices, env, help, group, commands
    {"-p --prompt", ARG_STR, OFF(prompt), 0, 0, NULL, "TEXT", NULL, NULL, "answer TEXT and end; - reads stdin", PROMPT, C_RUN},
    {"-p --prompt", ARG_STR, OFF(prompt), 0, 0, NULL, "TEXT", NULL, NULL, "continue TEXT; - reads stdin", PROMPT, C_GENERATE},
    {"-f --file", ARG_STR, OFF(file), 0, 0, NULL, "FILE", NULL, NULL, "prompt from FILE (- is stdin), behind that of -p", PROMPT, CHATS},
    {"-sys --system --system-prompt", ARG_STR, OFF(system), 0, 0, NULL, "TEXT", NULL, NULL, "system prompt", PROMPT, C_RUN},
    {"--no-chat-template --raw --ignore-chat-template", ARG_BOOL, OFF(no_template), 0, 0, NULL, NULL, NULL, NULL, "give the prompt to the model as it is", PROMPT, C_RUN},
    {"--chat-template-file", ARG_STR, OFF(template_file), 0, 0, NULL, "FILE", NULL, "CHAT_TEMPLATE_FILE", "use this Jinja template instead of the model's", PROMPT, C_RUN},
    {"--chat-template-kwargs --chat-template-config", ARG_STR, OFF(kwargs), 0, 0, NULL, "JSON", NULL, "CHAT_TEMPLATE_KWARGS", "variables for the template, as an object", PROMPT, C_RUN},
    {"--reasoning", ARG_CHOICE, OFF(reasoning), 0, 0, "auto", NULL, "auto|on|off", "REASONING", "set the template's enable_thinking", PROMPT, C_RUN},
    {"--show-reasoning", ARG_BOOL, OFF(show_reasoning), 0, 0, NULL, NULL, NULL, NULL, "print the text between <think> and </think> too", PROMPT, C_RUN},

    {"-n --max-tokens --n-predict --predict", ARG_INT, OFF(max_tokens), -1, INT_MAX, "-1", "N", NULL, "MAX_TOKENS N_PREDICT", "most tokens to generate; -1: until the model ends", ANSWER, CHATS},
    {"-r --stop --reverse-prompt", ARG_MANY, OFF(stop), 0, 0, NULL, "TEXT", NULL, NULL, "end before TEXT (\\n, \\t, \\\\ are known); repeatable", ANSWER, CHATS},
    {"--ignore-eos", ARG_BOOL, OFF(ignore_eos), 0, 0, NULL, NULL, NULL, NULL, "go on past the model's end token", ANSWER, CHATS},
    {"--context-shift", ARG_BOOL, OFF(context_shift), 0, 0, NULL, NULL, NULL, "CONTEXT_SHIFT", "forget the oldest half when the context is full", ANSWER, CHATS},
    {"--keep", ARG_INT, OFF(keep), 0, INT_MAX, "0", "N", NULL, "KEEP", "first tokens that are then kept", ANSWER, CHATS},
    {"--logprobs", ARG_INT, OFF(logprobs), 0, 100, NULL, "N", NULL, NULL, "log-probabilities, with the N best at each place", ANSWER, C_GENERATE},
    {"--json", ARG_BOOL, OFF(json), 0, 0, NULL, NULL, NULL, NULL, "one JSON object: text, ids, reason, timings", ANSWER, C_GENERATE},

    {"--temp --temperature", ARG_NUM, OFF(temp), 0, 100, "0", "F", NULL, "TEMPERATURE", "temperature; 0: greedy", SAMPLING, CHATS},
    {"--seed", ARG_SEED, OFF(seed), 0, 0, "-1", "N", NULL, "SEED", "-1: a random one", SAMPLING, CHATS},
    {"--top-k", ARG_INT, OFF(top_k), 0, INT_MAX, "0", "N", NULL, "TOP_K", "N likeliest; 0: off", SAMPLING, CHATS},
    {"--top-p", ARG_NUM, OFF(top_p), 0, 1, "1", "F", NULL, "TOP_P", "nucleus; 1: off", SAMPLING, CHATS},
    {"--min-p", ARG_NUM, OFF(min_p), 0, 1, "0", "F", NULL, "MIN_P", "of the best; 0: off", SAMPLING, CHATS},
    {"--typical --typical-p", ARG_NUM, OFF(typical), 0, 1, "1", "F", NULL, NULL, "typical mass; 1: off", SAMPLING, CHATS},
    {"--top-n-sigma --top-nsigma", ARG_NUM, OFF(top_n_sigma), -1, BIG, "-1", "F", NULL, NULL, "deviations; -1: off", SAMPLING, CHATS},
    {"--xtc-probability", ARG_NUM, OFF(xtc_probability), 0, 1, "0", "F", NULL, NULL, "of XTC; 0: off", SAMPLING, CHATS},
    {"--xtc-threshold", ARG_NUM, OFF(xtc_threshold), 0, 1, "0.1", "F", NULL, NULL, "of XTC", SAMPLING, CHATS},
    {"--repeat-penalty --repetition-penalty", ARG_NUM, OFF(repeat_penalty), 0.01, 100, "1", "F", NULL, "REPEAT_PENALTY", "1: off", SAMPLING, CHATS},
    {"--repeat-last-n", ARG_INT, OFF(repeat_last_n), -1, INT_MAX, "64", "N", NULL, NULL, "tokens; -1: all", SAMPLING, CHATS},
    {"--presence-penalty", ARG_NUM, OFF(presence_penalty), -100, 100, "0", "F", NULL, NULL, "0: off", SAMPLING, CHATS},
    {"--frequency-penalty", ARG_NUM, OFF(frequency_penalty), -100, 100, "0", "F", NULL, NULL, "0: off", SAMPLING, CHATS},
    {"--dry-multiplier", ARG_NUM, OFF(dry_multiplier), 0, 100, "0", "F", NULL, NULL, "of DRY; 0: off", SAMPLING, CHATS},
    {"--dry-base", ARG_NUM, OFF(dry_base), 1, 100, "1.75", "F", NULL, NULL, "of DRY", SAMPLING, CHATS},
    {"--dry-allowed-length", ARG_INT, OFF(dry_allowed), 0, INT_MAX, "2", "N", NULL, NULL, "free repeats", SAMPLING, CHATS},
    {"--dry-penalty-last-n", ARG_INT, OFF(dry_last_n), -1, INT_MAX, "64", "N", NULL, NULL, "tokens; -1: all", SAMPLING, CHATS},
    {"--dry-sequence-breaker", ARG_MANY, OFF(dry_breakers), 0, 0, NULL, "TEXT", NULL, NULL, "repeatable", SAMPLING, CHATS},
    {"-l --logit-bias", ARG_MANY, OFF(bias), 0, 0, NULL, "ID+B", NULL, NULL, "or ID-B, ID-inf", SAMPLING, CHATS},

    {"--ids", ARG_BOOL, OFF(ids), 0, 0, NULL, NULL, NULL, NULL, "decode: the input is ids, the output text", FLAGS, C_TOKENIZE},
    {"--pieces", ARG_BOOL, OFF(pieces), 0, 0, NULL, NULL, NULL, NULL, "one line a token: the id and how the vocabulary spells it", FLAGS, C_TOKENIZE},
    {"--json", ARG_BOOL, OFF(json), 0, 0, NULL, NULL, NULL, NULL, "JSON", FLAGS, C_TOKENIZE | C_INSPECT | C_LIST | C_DEVICES},
    {"--ports", ARG_BOOL, OFF(ports), 0, 0, NULL, NULL, NULL, NULL, "the fused ops of each device, and the shapes they take", FLAGS, C_DEVICES},
    {"--no-special --no-bos", ARG_BOOL, OFF(no_special), 0, 0, NULL, NULL, NULL, NULL, "add no begin or end tokens", FLAGS, C_TOKENIZE},
    {"-p --prompt", ARG_STR, OFF(prompt), 0, 0, NULL, "TEXT", NULL, NULL, "the text, instead of a positional; - reads stdin", FLAGS, C_TOKENIZE},
    {"-f --file", ARG_STR, OFF(file), 0, 0, NULL, "FILE", NULL, NULL, "the text from FILE", FLAGS, C_TOKENIZE},
    {"--memory", ARG_BOOL, OFF(memory), 0, 0, NULL, NULL, NULL, NULL, "only what it needs in memory", FLAGS, C_INSPECT},
    {"--modules", ARG_BOOL, OFF(modules), 0, 0, NULL, NULL, NULL, NULL, "how each kind of module is stored", FLAGS, C_INSPECT},
    {"-c --ctx-size --max-kv-size", ARG_INT, OFF(ctx), 0, INT_MAX, "0", "N", NULL, "CTX_SIZE", "context for the memory figures; 0: the model's", FLAGS, C_INSPECT},
    {"-dev --device", ARG_STR, OFF(device), 0, 0, "cpu", "NAME", NULL, NULL, "the device of the memory figures", FLAGS, C_INSPECT},
    {"-ub --chunk --ubatch-size --prefill-step-size", ARG_INT, OFF(chunk), 1, 65536, "512", "N", NULL, "CHUNK UBATCH", "prompt tokens in one step, for the memory figures", FLAGS, C_INSPECT},
    {"--batch", ARG_INT, OFF(batch), 1, 4096, "1", "N", NULL, NULL, "sequences at once, for the memory figures", FLAGS, C_INSPECT},
    {"-q --quiet", ARG_BOOL, OFF(quiet), 0, 0, NULL, NULL, NULL, NULL, "ids only", FLAGS, C_LIST},
    {"-v --verbose", ARG_BOOL, OFF(verbose), 0, 0, NULL, NULL, NULL, "VERBOSE", "paths and times too", FLAGS, C_LIST},
    {"-y --yes", ARG_BOOL, OFF(yes), 0, 0, NULL, NULL, NULL, NULL, "do not ask", FLAGS, C_RM},
    {"--revision", ARG_STR, OFF(revision), 0, 0, NULL, "NAME", NULL, NULL, "branch, tag or commit (main)", FLAGS, C_PULL},
    {"-j --jobs", ARG_INT, OFF(jobs), 1, 32, "4", "N", NULL, NULL, "files at once", FLAGS, C_PULL},

    {"-o --out --mlx-path", ARG_STR, OFF(out), 0, 0, NULL, "DIR", NULL, NULL, "folder to write, which must not exist", FLAGS, C_CONVERT},
    {"-q --quantize", ARG_BOOL, OFF(quantize), 0, 0, NULL, NULL, NULL, NULL, "quantize the weights", FLAGS, C_CONVERT},
    {"--q-bits", ARG_INT, OFF(q_bits), 2, 8, NULL, "N", NULL, NULL, "bits of a weight (4; mxfp8: 8)", FLAGS, C_CONVERT},
    {"--q-group-size", ARG_INT, OFF(q_group), 16, 128, NULL, "N", NULL, NULL, "weights that share a scale (64; mxfp: 32; nvfp4: 16)", FLAGS, C_CONVERT},
    {"--q-mode", ARG_CHOICE, OFF(q_mode), 0, 0, "affine", NULL, "affine|mxfp4|mxfp8|nvfp4", NULL, "format", FLAGS, C_CONVERT},
    {"--dtype", ARG_CHOICE, OFF(dtype), 0, 0, "auto", NULL, "auto|bfloat16|float16|float32", NULL, "of plain weights", FLAGS, C_CONVERT},
    {"-d --dequantize", ARG_BOOL, OFF(dequantize), 0, 0, NULL, NULL, NULL, NULL, "make quantized weights plain", FLAGS, C_CONVERT},
    {"-t --threads", ARG_INT, OFF(threads), 0, 1024, "0", "N", NULL, "THREADS", "CPU threads; 0: one for each core", FLAGS, C_CONVERT},

    {"--reference", ARG_STR, OFF(reference), 0, 0, NULL, "FILE", NULL, NULL, "traces to agree with (reference_fp32.json)", GATE, C_VERIFY},
    {"--decided", ARG_NUM, OFF(decided), 0, 1000, "2.0", "F", NULL, NULL, "lead at which a position counts as decided", GATE, C_VERIFY},
    {"--min-decided", ARG_INT, OFF(min_decided), 1, INT_MAX, "50", "N", NULL, NULL, "fewer decided positions are inconclusive", GATE, C_VERIFY},
    {"--max-logprob-diff", ARG_NUM, OFF(max_logprob_diff), 0, 1000, "0", "F", NULL, NULL, "bound of the mean difference; 0: none", GATE, C_VERIFY},
    {"--width", ARG_INT, OFF(width), 0, 65536, "0", "N", NULL, NULL, "tokens fed at once; 0: the chunk", GATE, C_VERIFY},
    {"--max-positions", ARG_INT, OFF(max_positions), 0, INT_MAX, "0", "N", NULL, NULL, "stop after N positions; 0: all", GATE, C_VERIFY},
    {"--write", ARG_STR, OFF(write), 0, 0, NULL, "FILE", NULL, NULL, "write traces of this model for the documents of --reference", GATE, C_VERIFY},
    {"--against", ARG_STR, OFF(against), 0, 0, NULL, "FILE", NULL, NULL, "compare FILE with --reference; no model is loaded", GATE, C_VERIFY},
    {"--json", ARG_BOOL, OFF(json), 0, 0, NULL, NULL, NULL, NULL, "JSON", GATE, C_VERIFY},

    {"-p --n-prompt", ARG_INTS, OFF(n_prompt), 0, 1 << 24, "512", "N", NULL, NULL, "prompt tokens; 0: no such test", TESTS, C_BENCH},
    {"-n --n-gen", ARG_INTS, OFF(n_gen), 0, 1 << 24, "128", "N", NULL, NULL, "generated tokens; 0: no such test", TESTS, C_BENCH},
    {"-pg", ARG_PAIRS, OFF(n_pg), 1, 1 << 24, NULL, "P,N", NULL, NULL, "a prompt and an answer, timed together", TESTS, C_BENCH},
    {"-d --n-depth", ARG_INTS, OFF(depth), 0, 1 << 24, "0", "N", NULL, NULL, "tokens in the cache before a test", TESTS, C_BENCH},
    {"-r --repetitions", ARG_INT, OFF(reps), 1, 1000, "5", "N", NULL, NULL, "times each test is run", TESTS, C_BENCH},
    {"-t --threads", ARG_INTS, OFF(bench_threads), 0, 1024, "0", "N", NULL, "THREADS", "CPU threads; 0: one for each core", TESTS, C_BENCH},
    {"-ub --ubatch-size --chunk --prefill-step-size", ARG_INTS, OFF(bench_chunk), 1, 65536, "512", "N", NULL, "CHUNK UBATCH", "prompt tokens in one step", TESTS, C_BENCH},
    {"--no-warmup", ARG_BOOL, OFF(no_warmup), 0, 0, NULL, NULL, NULL, NULL, "no untimed run before each test", TESTS, C_BENCH},
    {"-o --output", ARG_CHOICE, OFF(format), 0, 0, "md", NULL, "md|csv|json|jsonl", NULL, "format", OUTPUT, C_BENCH},
    {"--compare", ARG_BOOL, OFF(compare), 0, 0, NULL, NULL, NULL, NULL, "compare two csv files: mlxcel bench --compare A.csv B.csv", OUTPUT, C_BENCH},

    {"-m --model", ARG_STR, OFF(model), 0, 0, NULL, "MODEL", NULL, "MODEL", "the model, instead of as first argument", MODEL, ENGINES},
    {"-m --model", ARG_STR, OFF(model), 0, 0, NULL, "MODEL", NULL, "MODEL", "the model, instead of as first argument", FLAGS, C_TOKENIZE | C_INSPECT},
    {"-c --ctx-size --max-kv-size", ARG_INT, OFF(ctx), 0, INT_MAX, "0", "N", NULL, "CTX_SIZE", "context in tokens; 0: the model's own", MODEL, CHATS | C_VERIFY},
    {"-t --threads", ARG_INT, OFF(threads), 0, 1024, "0", "N", NULL, "THREADS", "CPU threads; 0: one for each core", MODEL, CHATS | C_VERIFY},
    {"-ub --chunk --ubatch-size --prefill-step-size", ARG_INT, OFF(chunk), 1, 65536, "512", "N", NULL, "CHUNK UBATCH", "prompt tokens in one step", MODEL, CHATS | C_VERIFY},
    {"--cache-type --kv --kv-cache-mode -ctk", ARG_CHOICE, OFF(cache_type), 0, 0, "auto", NULL, "auto|bf16|f16|f32", "CACHE_TYPE CACHE_TYPE_K", "type of the KV cache", MODEL, ENGINES},
    {"-dev --device", ARG_STR, OFF(device), 0, 0, "auto", "NAME", NULL, "DEVICE", "see `mlxcel devices`", MODEL, ENGINES},
#if defined(MX_GPU_ROCM) || defined(MX_GPU_CUDA)
    {"--graphs", ARG_CHOICE, OFF(graphs), 0, 0, "auto", NULL, "auto|on|off", "GRAPHS", "GPU: replay decode steps from a recording; auto: on with CUDA", MODEL, ENGINES},
    {"--step-timeout", ARG_INT, OFF(step_timeout), 1, 86400, "120", "S", NULL, "STEP_TIMEOUT", "GPU: seconds after which a step counts as hung", MODEL, ENGINES},
    {"--gpu-sync", ARG_BOOL, OFF(each_kernel), 0, 0, NULL, NULL, NULL, "GPU_SYNC", "GPU: wait for each kernel, so that errors name it; slow", MODEL, ENGINES},
#endif
    {"--exact", ARG_BOOL, OFF(exact), 0, 0, NULL, NULL, NULL, "EXACT", "same bits whatever the batch; slower", MODEL, ENGINES},
    {"--isa", ARG_CHOICE, OFF(isa), 0, 0, "auto", "NAME", "auto|scalar|avx2|avx512|vnni|bf16|amx", "ISA", "use no more of the CPU than this (debugging)", MODEL, ENGINES},
    {"--no-memory-check", ARG_BOOL, OFF(no_memory_check), 0, 0, NULL, NULL, NULL, "NO_MEMORY_CHECK", "load even if it seems not to fit", MODEL, ENGINES},

    {"--stats", ARG_BOOL, OFF(stats), 0, 0, NULL, NULL, NULL, NULL, "speed and memory on stderr, also without a terminal", OUTPUT, CHATS},
    {"--color", ARG_CHOICE, OFF(color), 0, 0, "auto", NULL, "auto|never|always", "COLOR", "colours", OUTPUT, CHATS},
    {"-v --verbose", ARG_BOOL, OFF(verbose), 0, 0, NULL, NULL, NULL, "VERBOSE", "say what is done, and statistics", OUTPUT, CHATS},
    {"-v --verbose", ARG_BOOL, OFF(verbose), 0, 0, NULL, NULL, NULL, "VERBOSE", "say what is done", OUTPUT, ENGINES & ~CHATS},
    {"-v --verbose", ARG_BOOL, OFF(verbose), 0, 0, NULL, NULL, NULL, "VERBOSE", "say what is done", FLAGS, C_TOKENIZE | C_INSPECT | C_PULL | C_CONVERT},
    {"-q --quiet", ARG_BOOL, OFF(quiet), 0, 0, NULL, NULL, NULL, "QUIET", "no progress, no statistics", OUTPUT, ENGINES},
    {"-q --quiet", ARG_BOOL, OFF(quiet), 0, 0, NULL, NULL, NULL, "QUIET", "no progress", FLAGS, C_PULL},
    {"--quiet", ARG_BOOL, OFF(quiet), 0, 0, NULL, NULL, NULL, "QUIET", "no progress", FLAGS, C_CONVERT},
};
// clang-format on
const int cli_n_flag = countof(cli_flags);
