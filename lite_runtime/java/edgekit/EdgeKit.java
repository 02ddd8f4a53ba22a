package edgekit;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.function.LongConsumer;

/**
 * A model in a .nb file and one conversation with it.
 *
 * <p>Threads: questions queue; {@link #cancel} and {@link #close} may come from any thread at any time. A listener
 * may cancel, but neither close nor ask: IllegalStateException.
 */
public final class EdgeKit implements AutoCloseable {
  /** Receives an answer as it comes. */
  public interface TextListener {
    /** Whole characters; false ends the answer. What this throws ends it too and leaves the call. */
    boolean onText(String text);
  }

  static {
    System.loadLibrary("edge_kit_jni");
  }

  private final Object handleLock = new Object(); // held while the handle is used by cancel or freed
  private volatile long handle; // of the native side; 0 = closed
  private volatile boolean closing; // questions that still queue are not asked any more
  private volatile Thread answering; // which holds this object's lock and runs listeners

  /**
   * Opens a model.
   *
   * @param contextTokens most tokens of a conversation; 0 = the model's limit, at most 32768
   * @throws EdgeKitException if the file cannot be read or run
   */
  public EdgeKit(String path, long contextTokens) {
    handle = open(bytes("path", path), contextTokens);
  }

  public EdgeKit(String path) {
    this(path, 0);
  }

  /** Version of the native library. */
  public static native String version();

  /**
   * The model's answer to the last message. What the session holds of earlier messages is not computed again.
   *
   * @param maxNewTokens 0 = as the file says, else until the context is full
   * @param listener may be null
   * @throws EdgeKitException e.g. with {@link EdgeKitException#NOT_SUPPORTED} if the file has no chat format
   */
  public synchronized String chat(List<Message> messages, long maxNewTokens, TextListener listener) {
    byte[][] parts = new byte[2 * messages.size()][];
    int i = 0;
    for (Message message : messages) {
      parts[i++] = bytes("role", message.role);
      parts[i++] = bytes("content", message.content);
    }
    Answer answer = new Answer(listener);
    return ask(answer, opened -> chat(opened, parts, maxNewTokens, answer));
  }

  /** Appends a prompt as it is to the session, and returns how the model goes on. */
  public synchronized String generate(String prompt, long maxNewTokens, TextListener listener) {
    byte[] text = prompt.getBytes(StandardCharsets.UTF_8);
    Answer answer = new Answer(listener);
    return ask(answer, opened -> generate(opened, text, maxNewTokens, answer));
  }

  /** Ends the running answer, or the next one. */
  public void cancel() {
    synchronized (handleLock) {
      if (handle != 0) cancel(handle);
    }
  }

  /** Cancels what runs and frees the native side. May be called twice. */
  @Override
  public void close() {
    notFromAListener("close the model");
    closing = true;
    cancel();
    synchronized (this) {
      synchronized (handleLock) {
        if (handle != 0) close(handle);
        handle = 0;
      }
    }
  }

  private String ask(Answer answer, LongConsumer call) {
    notFromAListener("ask for another answer");
    if (closing) throw new IllegalStateException("the model is closed");
    answering = Thread.currentThread();
    try {
      call.accept(handle);
    } finally {
      answering = null;
    }
    return answer.text.toString();
  }

  // The lock of this object does not stop the thread that holds it.
  private void notFromAListener(String what) {
    if (answering == Thread.currentThread()) {
      throw new IllegalStateException("a listener cannot " + what + ": wait until the answer has ended");
    }
  }

  // C ends a string at a zero character.
  private static byte[] bytes(String name, String text) {
    if (text.indexOf('\0') >= 0) throw new IllegalArgumentException(name + " holds a zero character");
    return text.getBytes(StandardCharsets.UTF_8);
  }

  /** Collects an answer; called by the native side. */
  private static final class Answer {
    final StringBuilder text = new StringBuilder();
    private final TextListener listener;

    Answer(TextListener listener) {
      this.listener = listener;
    }

    boolean add(byte[] utf8) {
      String piece = new String(utf8, StandardCharsets.UTF_8);
      text.append(piece);
      return listener == null || listener.onText(piece);
    }
  }

  private static native long open(byte[] path, long contextTokens);

  private static native void chat(long handle, byte[][] parts, long maxNewTokens, Answer answer);

  private static native void generate(long handle, byte[] prompt, long maxNewTokens, Answer answer);

  private static native void cancel(long handle);

  private static native void close(long handle);
}
