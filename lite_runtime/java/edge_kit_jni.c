/* The native side of edgekit.EdgeKit. Texts cross as UTF-8 in byte arrays: JNI's own strings are a modified UTF-8
 * that spells characters beyond U+FFFF in another way. */
#include <edge_kit.h>
#include <jni.h>
#include <stdlib.h>
#include <string.h>

typedef struct conversation {
  ek_model* model;
  ek_session* session;
} conversation;

/* What the text callback needs; JNI's environment is the calling thread's. */
typedef struct listener {
  JNIEnv* env;
  jobject answer;
  jmethodID add;
} listener;

static void throw_out_of_memory(JNIEnv* env) {
  jclass type = (*env)->FindClass(env, "java/lang/OutOfMemoryError");
  if (type != NULL) (*env)->ThrowNew(env, type, "no memory for a text on its way to the native runtime");
}

static jbyteArray to_java(JNIEnv* env, const char* text, size_t n_bytes) {
  jbyteArray array = (*env)->NewByteArray(env, (jsize)n_bytes);
  if (array != NULL) (*env)->SetByteArrayRegion(env, array, 0, (jsize)n_bytes, (const jbyte*)text);
  return array;
}

static jstring to_java_string(JNIEnv* env, const char* text) {
  jclass type = (*env)->FindClass(env, "java/lang/String");
  if (type == NULL) return NULL;
  jmethodID make = (*env)->GetMethodID(env, type, "<init>", "([BLjava/lang/String;)V");
  jbyteArray array = to_java(env, text, strlen(text));
  jstring charset = (*env)->NewStringUTF(env, "UTF-8");
  if (make == NULL || array == NULL || charset == NULL) return NULL;
  return (jstring)(*env)->NewObject(env, type, make, array, charset);
}

static void throw_status(JNIEnv* env, ek_status status) {
  if ((*env)->ExceptionCheck(env)) return; /* the listener's own comes first */
  jstring message = to_java_string(env, ek_last_error());
  jclass type = (*env)->FindClass(env, "edgekit/EdgeKitException");
  if (message == NULL || type == NULL) return;
  jmethodID make = (*env)->GetMethodID(env, type, "<init>", "(ILjava/lang/String;)V");
  if (make == NULL) return;
  jthrowable error = (jthrowable)(*env)->NewObject(env, type, make, (jint)status, message);
  if (error != NULL) (*env)->Throw(env, error);
}

/* A copy with a NUL behind it, to be freed; NULL with an exception pending. */
static char* to_c(JNIEnv* env, jbyteArray array, size_t* n_bytes) {
  const jsize size = (*env)->GetArrayLength(env, array);
  char* text = malloc((size_t)size + 1);
  if (text == NULL) {
    throw_out_of_memory(env);
    return NULL;
  }
  (*env)->GetByteArrayRegion(env, array, 0, size, (jbyte*)text);
  text[size] = '\0';
  if (n_bytes != NULL) *n_bytes = (size_t)size;
  return text;
}

static int add_text(void* user, const char* text, size_t n_bytes) {
  const listener* to = user;
  JNIEnv* env = to->env;
  jbyteArray piece = to_java(env, text, n_bytes);
  if (piece == NULL) return 0;
  const jboolean go_on = (*env)->CallBooleanMethod(env, to->answer, to->add, piece);
  (*env)->DeleteLocalRef(env, piece);
  return go_on && !(*env)->ExceptionCheck(env);
}

static int make_listener(JNIEnv* env, jobject answer, listener* to) {
  to->env = env;
  to->answer = answer;
  to->add = (*env)->GetMethodID(env, (*env)->GetObjectClass(env, answer), "add", "([B)Z");
  return to->add != NULL;
}

static ek_generate_options options_of(jlong max_new_tokens) {
  ek_generate_options options = {0};
  options.struct_size = sizeof options;
  options.max_new_tokens = max_new_tokens;
  return options;
}

JNIEXPORT jstring JNICALL Java_edgekit_EdgeKit_version(JNIEnv* env, jclass type) {
  (void)type;
  return to_java_string(env, ek_version());
}

JNIEXPORT jlong JNICALL Java_edgekit_EdgeKit_open(JNIEnv* env, jclass type, jbyteArray path, jlong n_ctx) {
  (void)type;
  char* c_path = to_c(env, path, NULL);
  conversation* opened = calloc(1, sizeof *opened);
  if (c_path != NULL && opened == NULL) throw_out_of_memory(env);
  if (c_path != NULL && opened != NULL) {
    ek_options options = {0};
    options.struct_size = sizeof options;
    options.n_ctx = n_ctx;
    ek_status status = ek_model_open(c_path, &options, &opened->model);
    if (status == EK_OK) status = ek_session_create(opened->model, &opened->session);
    if (status != EK_OK) throw_status(env, status);
  }
  free(c_path);
  if ((*env)->ExceptionCheck(env)) {
    if (opened != NULL) ek_model_close(opened->model);
    free(opened);
    return 0;
  }
  return (jlong)(intptr_t)opened;
}

JNIEXPORT void JNICALL Java_edgekit_EdgeKit_chat(JNIEnv* env, jclass type, jlong handle, jobjectArray parts,
                                                 jlong max_new_tokens, jobject answer) {
  (void)type;
  const conversation* with = (const conversation*)(intptr_t)handle;
  const size_t n_parts = (size_t)(*env)->GetArrayLength(env, parts); /* role, content, role, ... */
  char** texts = calloc(n_parts + 1, sizeof *texts);
  ek_message* messages = calloc(n_parts / 2 + 1, sizeof *messages);
  listener to;
  if (texts == NULL || messages == NULL) {
    throw_out_of_memory(env);
  } else {
    for (size_t i = 0; i < n_parts && !(*env)->ExceptionCheck(env); ++i) {
      jbyteArray part = (jbyteArray)(*env)->GetObjectArrayElement(env, parts, (jsize)i);
      if (part != NULL) texts[i] = to_c(env, part, NULL);
      (*env)->DeleteLocalRef(env, part);
      if (i % 2 == 0) messages[i / 2].role = texts[i];
      else messages[i / 2].content = texts[i];
    }
    if (!(*env)->ExceptionCheck(env) && make_listener(env, answer, &to)) {
      const ek_generate_options options = options_of(max_new_tokens);
      const ek_status status = ek_chat(with->session, messages, n_parts / 2, &options, add_text, &to, NULL);
      if (status != EK_OK) throw_status(env, status);
    }
  }
  for (size_t i = 0; texts != NULL && i < n_parts; ++i) free(texts[i]);
  free(texts);
  free(messages);
}

JNIEXPORT void JNICALL Java_edgekit_EdgeKit_generate(JNIEnv* env, jclass type, jlong handle, jbyteArray prompt,
                                                     jlong max_new_tokens, jobject answer) {
  (void)type;
  const conversation* with = (const conversation*)(intptr_t)handle;
  size_t n_bytes = 0;
  char* text = to_c(env, prompt, &n_bytes);
  listener to;
  if (text != NULL && make_listener(env, answer, &to)) {
    const ek_generate_options options = options_of(max_new_tokens);
    const ek_status status = ek_generate(with->session, text, n_bytes, &options, add_text, &to, NULL);
    if (status != EK_OK) throw_status(env, status);
  }
  free(text);
}

JNIEXPORT void JNICALL Java_edgekit_EdgeKit_cancel(JNIEnv* env, jclass type, jlong handle) {
  (void)env;
  (void)type;
  ek_session_cancel(((const conversation*)(intptr_t)handle)->session);
}

JNIEXPORT void JNICALL Java_edgekit_EdgeKit_close(JNIEnv* env, jclass type, jlong handle) {
  (void)env;
  (void)type;
  conversation* closed = (conversation*)(intptr_t)handle;
  ek_session_free(closed->session);
  ek_model_close(closed->model);
  free(closed);
}
