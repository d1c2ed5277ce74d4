/* simple.c - ask a model one question and print its answer as it is made.
 *
 *     cc simple.c $(pkg-config --cflags --libs mlxcel) -o simple
 *     ./simple models/demo "What is 17 + 25?" */
#include <mlxcel.h>
#include <stdio.h>

static int show(void *arg, const char *text, size_t len) {
    (void)arg;
    fwrite(text, 1, len, stdout);
    return fflush(stdout) != 0; /* nonzero, when nobody reads any more, ends the answer */
}

int main(int argc, char **argv) {
    mlxcel_model *model;
    mlxcel_error err;
    mlxcel_stats stats;
    if (argc != 3) {
        fprintf(stderr, "usage: simple MODEL QUESTION\n");
        return 2;
    }
    if (mlxcel_model_open(&model, argv[1], NULL, &err) != MLXCEL_OK) {
        fprintf(stderr, "simple: %s\n", err.message);
        return 1;
    }
    mlxcel_message question = {"user", argv[2]};
    mlxcel_options options = mlxcel_options_for(model);
    options.max_tokens = 200;
    options.on_text = show;
    mlxcel_status st = mlxcel_chat(model, &question, 1, &options, &stats, &err);
    if (st == MLXCEL_OK)
        printf("\n");
    else
        fprintf(stderr, "simple: %s\n", err.message);
    mlxcel_model_free(model);
    return st == MLXCEL_OK ? 0 : 1;
}
