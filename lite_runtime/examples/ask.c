/* Answers a question from one .nb file: ask MODEL.nb "What is the capital of France?" */
#include <edge_kit.h>
#include <stdio.h>

static int show(void* user, const char* text, size_t n_bytes) {
  fwrite(text, 1, n_bytes, stdout);
  fflush(stdout);
  return user == NULL; /* 1: go on */
}

static int failed(const char* what) {
  fprintf(stderr, "ask: %s: %s\n", what, ek_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "usage: ask MODEL.nb QUESTION\n"), 2;
  ek_model* model = NULL;
  ek_session* session = NULL;
  const ek_message question = {"user", argv[2]};
  if (ek_model_open(argv[1], NULL, &model) != EK_OK) return failed("cannot open the model");
  int status = 0;
  if (ek_session_create(model, &session) != EK_OK ||
      ek_chat(session, &question, 1, NULL, show, NULL, NULL) != EK_OK) {
    status = failed("no answer");
  }
  printf("\n");
  ek_session_free(session);
  ek_model_close(model);
  return status;
}
