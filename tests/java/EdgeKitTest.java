import edgekit.EdgeKit;
import edgekit.EdgeKitException;
import edgekit.Message;
import java.util.Arrays;
import java.util.Collections;

/** Checks of the Java wrapper on the demo model; prints "passed". */
public final class EdgeKitTest {
  private static final Message QUESTION = new Message("user", "Repeat: \uD83D\uDE42 \u9E21\u5154");

  public static void main(String[] arguments) throws Exception {
    check(EdgeKit.version().matches("\\d+\\.\\d+\\.\\d+"), "version " + EdgeKit.version());
    EdgeKit model = new EdgeKit(arguments[0], 256);
    charactersBeyondTheBasicPlane(model);
    aListenerEndsIt(model);
    whatAListenerThrowsLeavesTheCall(model);
    aListenerCanNeitherCloseNorAsk(model);
    errorsHaveAStatus(model, arguments[0]);
    cancelFromAnotherThread(model);
    closeWhileItAnswers(model);
    System.out.println("passed");
  }

  private static void charactersBeyondTheBasicPlane(EdgeKit model) {
    String rocket = "\uD83D\uDE80", party = "\uD83C\uDF89", smile = "\uD83D\uDE42";
    StringBuilder pieces = new StringBuilder();
    String prompt = "Emoji: " + party + " " + rocket + " " + smile + " " + party + " " + rocket + " " + smile + " " + party;
    String text = model.generate(prompt, 16, piece -> pieces.append(piece) != null);
    check(text.contentEquals(pieces), "pieces " + pieces + ", text " + text);
    check(text.contains(rocket) && text.indexOf('\uFFFD') < 0, "no sound rocket in " + text);
    String answer = model.chat(Collections.singletonList(QUESTION), 24, null);
    check(answer.equals(model.chat(Collections.singletonList(QUESTION), 24, null)), "another answer");
  }

  private static void aListenerEndsIt(EdgeKit model) {
    int[] calls = {0};
    model.generate("One, two, three,", 24, piece -> ++calls[0] < 3);
    check(calls[0] == 3, calls[0] + " calls");
  }

  private static void whatAListenerThrowsLeavesTheCall(EdgeKit model) {
    try {
      model.chat(Collections.singletonList(QUESTION), 8, piece -> {
        throw new UnsupportedOperationException("mine");
      });
      check(false, "nothing was thrown");
    } catch (UnsupportedOperationException expected) {
      check("mine".equals(expected.getMessage()), expected.toString());
    }
  }

  private static void aListenerCanNeitherCloseNorAsk(EdgeKit model) {
    for (Runnable wrong : new Runnable[] {model::close, () -> model.generate("x", 1, null)}) {
      try {
        model.generate("One, two, three,", 4, piece -> {
          wrong.run();
          return true;
        });
        check(false, "nothing was thrown");
      } catch (IllegalStateException expected) {
        check(expected.getMessage().contains("a listener cannot"), expected.toString());
      }
    }
    check(!model.generate("One, two, three,", 4, null).isEmpty(), "no answer behind them");
  }

  private static void errorsHaveAStatus(EdgeKit model, String path) {
    expectStatus(1, "role", () -> model.chat(Collections.singletonList(new Message("poet", "x")), 1, null));
    expectStatus(1, "", () -> model.chat(Collections.emptyList(), 1, null));
    expectStatus(1, "max_new_tokens is -1", () -> model.generate("x", -1, null));
    char[] much = new char[4000];
    Arrays.fill(much, '7');
    expectStatus(6, "limit is 256", () -> model.generate(new String(much), 1, null));
    expectStatus(2, "missing", () -> new EdgeKit(path + ".missing").close());
    try {
      model.chat(Collections.singletonList(new Message("user", "a\0b")), 1, null);
      check(false, "a zero character was taken");
    } catch (IllegalArgumentException expected) {
      check(expected.getMessage().contains("zero"), expected.toString());
    }
  }

  private static void cancelFromAnotherThread(EdgeKit model) {
    int[] calls = {0};
    model.generate("Once upon a time", 24, piece -> {
      ++calls[0];
      Thread canceller = new Thread(model::cancel);
      canceller.start();
      try {
        canceller.join();
      } catch (InterruptedException interrupted) {
        throw new IllegalStateException(interrupted);
      }
      return true;
    });
    check(calls[0] == 1, calls[0] + " calls, cancelled at the first");
  }

  private static void closeWhileItAnswers(EdgeKit model) throws InterruptedException {
    Thread[] closer = {null};
    model.chat(Collections.singletonList(QUESTION), 0, piece -> {
      if (closer[0] == null) {
        closer[0] = new Thread(model::close);
        closer[0].start();
      }
      return true;
    });
    closer[0].join();
    model.close();
    model.cancel();
    try {
      model.generate("x", 1, null);
      check(false, "a closed model answered");
    } catch (IllegalStateException expected) {
      check(expected.getMessage().contains("closed"), expected.toString());
    }
  }

  private static void expectStatus(int status, String words, Runnable call) {
    try {
      call.run();
    } catch (EdgeKitException error) {
      check(error.status == status && error.getMessage().contains(words), error.status + ": " + error.getMessage());
      return;
    }
    check(false, "no error of status " + status);
  }

  private static void check(boolean holds, String otherwise) {
    if (!holds) throw new AssertionError(otherwise);
  }
}
