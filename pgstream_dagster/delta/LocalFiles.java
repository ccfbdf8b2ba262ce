package pgstream;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's RawLocalFileSystem, without the programs that it starts where its native library is
 * missing: chmod for each new file, readlink eight times for each commit of Spark's Delta. Each
 * takes 7 ms of CPU.
 *
 * Compiled into local_files.jar by `make local-files`.
 */
public final class LocalFiles extends RawLocalFileSystem {
    /** As chmod does with a number, which leaves the set-group-ID of a folder as it is. */
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
        java.nio.file.Path file = pathToFile(path).toPath();
        int mode = permission.toShort();
        if (Files.isDirectory(file)) {
            mode |= (Integer) Files.getAttribute(file, "unix:mode") & 06000;
        }
        Files.setAttribute(file, "unix:mode", mode);
    }

    /** Hadoop's asks readlink for the URI, as which no file has a name: so it never sees a link. */
    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
        return getFileStatus(path);
    }

    /** Hadoop's RawLocalFs with these files: Spark's Delta commits through a FileContext. */
    public static final class Context extends DelegateToFileSystem {
        public Context(URI uri, Configuration conf) throws IOException, URISyntaxException {
            super(uri, new LocalFiles(), conf, "file", false);
        }

        @Override
        public int getUriDefaultPort() {
            return -1;
        }

        @Override
        public FsServerDefaults getServerDefaults(Path path) throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        @Override
        @SuppressWarnings("deprecation")
        public FsServerDefaults getServerDefaults() throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        @Override
        public boolean isValidName(String name) {
            return true;
        }
    }
}
