package edgekit;

/** An error of the native runtime: what was found, what was expected, what to do. */
public final class EdgeKitException extends RuntimeException {
  /** The status of a file or a call that this runtime cannot serve, EK_ERR_NOT_SUPPORTED. */
  public static final int NOT_SUPPORTED = 4;

  private static final long serialVersionUID = 1;

  /** The ek_status of edge_kit.h. */
  public final int status;

  EdgeKitException(int status, String message) {
    super(message);
    this.status = status;
  }
}
