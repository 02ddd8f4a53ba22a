import edgekit.EdgeKit;
import edgekit.Message;
import java.util.Collections;

/** Answers a question from one .nb file: Ask MODEL.nb QUESTION. */
public final class Ask {
  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 2) {
      System.err.println("usage: Ask MODEL.nb QUESTION");
      System.exit(2);
    }
    java.io.PrintStream out = new java.io.PrintStream(System.out, true, "UTF-8");
    try (EdgeKit model = new EdgeKit(arguments[0])) {
      Message question = new Message("user", arguments[1]);
      model.chat(
          Collections.singletonList(question),
          0,
          text -> {
            out.print(text);
            out.flush();
            return true;
          });
      out.println();
    } catch (edgekit.EdgeKitException error) {
      System.err.println("Ask: " + error.getMessage());
      System.exit(1);
    }
  }
}
