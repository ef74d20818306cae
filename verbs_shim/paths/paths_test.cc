// libc's functions with the library in front of them, as LD_PRELOAD puts it: the test starts itself
// anew with it. The instance is a directory with a tree of this test's.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

extern "C" {
int __open_2(const char* path, int flags);
int __open64_2(const char* path, int flags);
int __openat_2(int fd, const char* path, int flags);
int __openat64_2(int fd, const char* path, int flags);
int __xstat(int version, const char* path, struct stat* out);
int __xstat64(int version, const char* path, struct stat64* out);
int __lxstat(int version, const char* path, struct stat* out);
int __lxstat64(int version, const char* path, struct stat64* out);
int __fxstatat(int version, int fd, const char* path, struct stat* out, int flags);
int __fxstatat64(int version, int fd, const char* path, struct stat64* out, int flags);
ssize_t __readlink_chk(const char* path, char* out, size_t bytes, size_t room);
ssize_t __readlinkat_chk(int fd, const char* path, char* out, size_t bytes, size_t room);
char* __realpath_chk(const char* path, char* out, size_t room);
int scandirat(int fd, const char* path, dirent*** list, int (*)(const dirent*),
              int (*)(const dirent**, const dirent**));
}

namespace verbena::paths {
namespace {

namespace fs = std::filesystem;

constexpr char kLibrary[] = "verbs_shim/paths/libverbena-paths.so";
constexpr char kFile[] = "/sys/class/infiniband/verbena0/node_type";
constexpr char kLink[] = "/sys/class/infiniband/verbena0/link";
constexpr char kClass[] = "/sys/class/infiniband";
constexpr char kDevice[] = "/dev/infiniband/uverbs0";
constexpr int kStatVersion = 1;  // _STAT_VER of x86-64

// Not volatile: the compiler would know that libc's functions take no null path.
const char* volatile g_null = nullptr;

bool Opens(int fd) {
  if (fd < 0) return false;
  char text[16] = "";
  const bool is_right = read(fd, text, sizeof(text)) == 6 && memcmp(text, "1: CA\n", 6) == 0;
  close(fd);
  return is_right;
}

class PathsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/paths-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    instance_ = fs::canonical(pattern);
    tree_ = instance_ + "/paths";
    Add("/sys/class/infiniband/verbena0/node_type", "1: CA\n");
    Add("/sys/class/infiniband_verbs/abi_version", "6\n");
    fs::create_symlink("node_type", tree_ + kLink);
    fs::create_directories(tree_ + "/dev/infiniband");
    fs::create_symlink("/dev/null", tree_ + kDevice);
    setenv("VERBENA_INSTANCE", instance_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("VERBENA_INSTANCE");
    fs::remove_all(instance_);
  }
  void Add(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(tree_ + path).parent_path());
    std::ofstream(tree_ + path) << text;
  }

  std::string instance_, tree_;
};

TEST_F(PathsTest, OpenReadsTheTree) {
  EXPECT_TRUE(Opens(open(kFile, O_RDONLY)));
  EXPECT_TRUE(Opens(open64(kFile, O_RDONLY)));
  EXPECT_TRUE(Opens(openat(AT_FDCWD, kFile, O_RDONLY)));
  EXPECT_TRUE(Opens(openat64(AT_FDCWD, kFile, O_RDONLY)));
  EXPECT_TRUE(Opens(__open_2(kFile, O_RDONLY)));
  EXPECT_TRUE(Opens(__open64_2(kFile, O_RDONLY)));
  EXPECT_TRUE(Opens(__openat_2(AT_FDCWD, kFile, O_RDONLY)));
  EXPECT_TRUE(Opens(__openat64_2(AT_FDCWD, kFile, O_RDONLY)));
  for (auto* function : {&fopen, &fopen64}) {
    FILE* file = function(kFile, "r");
    ASSERT_NE(file, nullptr);
    char text[16];
    EXPECT_STREQ(fgets(text, sizeof(text), file), "1: CA\n");
    fclose(file);
  }
}

TEST_F(PathsTest, StatSeesTheTree) {
  struct stat st = {};
  struct stat64 st64 = {};
  struct statx stx = {};
  EXPECT_EQ(stat(kFile, &st), 0);
  EXPECT_EQ(st.st_size, 6);
  EXPECT_EQ(stat64(kFile, &st64), 0);
  EXPECT_EQ(lstat(kLink, &st), 0);
  EXPECT_TRUE(S_ISLNK(st.st_mode));
  EXPECT_EQ(lstat64(kLink, &st64), 0);
  EXPECT_TRUE(S_ISLNK(st64.st_mode));
  EXPECT_EQ(fstatat(AT_FDCWD, kLink, &st, AT_SYMLINK_NOFOLLOW), 0);
  EXPECT_TRUE(S_ISLNK(st.st_mode));
  EXPECT_EQ(fstatat64(AT_FDCWD, kLink, &st64, 0), 0);
  EXPECT_TRUE(S_ISREG(st64.st_mode));
  EXPECT_EQ(statx(AT_FDCWD, kFile, 0, STATX_SIZE, &stx), 0);
  EXPECT_EQ(stx.stx_size, 6u);
}

TEST_F(PathsTest, StatOfOldProgramsSeesTheTree) {
  struct stat st = {};
  struct stat64 st64 = {};
  EXPECT_EQ(__xstat(kStatVersion, kFile, &st), 0);
  EXPECT_EQ(st.st_size, 6);
  EXPECT_EQ(__xstat64(kStatVersion, kFile, &st64), 0);
  EXPECT_EQ(__lxstat(kStatVersion, kLink, &st), 0);
  EXPECT_TRUE(S_ISLNK(st.st_mode));
  EXPECT_EQ(__lxstat64(kStatVersion, kLink, &st64), 0);
  EXPECT_EQ(__fxstatat(kStatVersion, AT_FDCWD, kFile, &st, 0), 0);
  EXPECT_TRUE(S_ISREG(st.st_mode));
  EXPECT_EQ(__fxstatat64(kStatVersion, AT_FDCWD, kFile, &st64, 0), 0);
}

TEST_F(PathsTest, AccessSeesTheTree) {
  EXPECT_EQ(access(kFile, R_OK), 0);
  EXPECT_EQ(eaccess(kFile, R_OK), 0);
  EXPECT_EQ(euidaccess(kFile, R_OK), 0);
  EXPECT_EQ(faccessat(AT_FDCWD, kFile, R_OK, AT_EACCESS), 0);
  EXPECT_EQ(access("/sys/class/infiniband/verbena1", F_OK), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(PathsTest, AttributesAreOfTheTree) {
  char text[16];
  for (auto* function : {&getxattr, &lgetxattr}) {
    EXPECT_EQ(function(kFile, "user.none", text, sizeof(text)), -1);
    EXPECT_NE(errno, ENOENT);
  }
  for (auto* function : {&listxattr, &llistxattr}) {
    EXPECT_GE(function(kFile, text, 0), 0);
  }
}

TEST_F(PathsTest, DirectoriesAreListed) {
  DIR* dir = opendir(kClass);
  ASSERT_NE(dir, nullptr);
  std::string names;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.') names += entry->d_name;
  }
  closedir(dir);
  EXPECT_EQ(names, "verbena0");
  dirent** list = nullptr;
  dirent64** list64 = nullptr;
  EXPECT_EQ(scandir(kClass, &list, nullptr, nullptr), 3);
  EXPECT_EQ(scandir64(kClass, &list64, nullptr, nullptr), 3);
  EXPECT_EQ(scandirat(AT_FDCWD, kClass, &list, nullptr, nullptr), 3);
}

TEST_F(PathsTest, LinksAndRealPathsAreOfTheTree) {
  char text[PATH_MAX] = "";
  EXPECT_EQ(readlink(kLink, text, sizeof(text)), 9);
  EXPECT_EQ(readlinkat(AT_FDCWD, kLink, text, sizeof(text)), 9);
  EXPECT_EQ(__readlink_chk(kLink, text, sizeof(text), sizeof(text)), 9);
  EXPECT_EQ(__readlinkat_chk(AT_FDCWD, kLink, text, sizeof(text), sizeof(text)), 9);
  EXPECT_STREQ(realpath(kLink, text), (tree_ + kFile).c_str());
  EXPECT_STREQ(__realpath_chk(kLink, text, sizeof(text)), (tree_ + kFile).c_str());
  char* allocated = realpath(kClass, nullptr);
  EXPECT_STREQ(allocated, (tree_ + kClass).c_str());
  free(allocated);
  allocated = canonicalize_file_name(kClass);
  EXPECT_STREQ(allocated, (tree_ + kClass).c_str());
  free(allocated);
}

TEST_F(PathsTest, TheVerbsClassIsOfTheTreeToo) {
  EXPECT_EQ(access("/sys/class/infiniband_verbs", R_OK), 0);
  EXPECT_EQ(access("/sys/class/infiniband_verbs/abi_version", R_OK), 0);
  EXPECT_EQ(access("/sys/class/infiniband/", R_OK), 0);
}

TEST_F(PathsTest, TheDeviceIsACharacterDeviceToReadAndWrite) {
  struct stat st = {};
  ASSERT_EQ(stat(kDevice, &st), 0);
  EXPECT_TRUE(S_ISCHR(st.st_mode));
  ASSERT_EQ(lstat(kDevice, &st), 0);
  EXPECT_TRUE(S_ISCHR(st.st_mode));
  EXPECT_EQ(access(kDevice, R_OK | W_OK), 0);
  int fd = open(kDevice, O_RDWR | O_CLOEXEC);
  EXPECT_GE(fd, 0);
  close(fd);
  EXPECT_EQ(stat("/dev/infiniband/uverbs1", &st), -1);
  EXPECT_EQ(errno, ENOENT);
}

// What libc itself answers.
int Untouched(const char* path) {
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY, 0));
  if (fd < 0) return errno;
  close(fd);
  return 0;
}

int Ours(const char* path) {
  const int fd = open(path, O_RDONLY);
  if (fd < 0) return errno;
  close(fd);
  return 0;
}

TEST_F(PathsTest, NeighboursGoToLibc) {
  for (const char* path :
       {"/sys/class/infiniband_mad/abi_version", "/sys/class/infinibandx",
        "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs", "/dev/infiniband/uverbs0x"}) {
    Add(path, "here nobody looks for it");
    EXPECT_EQ(Ours(path), Untouched(path)) << path;
  }
  for (const char* path : {"/sys/class/infiniban", "/dev/infiniband/uverbs0/x", "/sys", "/", ""}) {
    EXPECT_EQ(Ours(path), Untouched(path)) << path;
  }
}

TEST_F(PathsTest, BadPathsAreErrorsAsEver) {
  EXPECT_EQ(open(g_null, O_RDONLY), -1);
  EXPECT_EQ(errno, EFAULT);
  struct stat st;
  EXPECT_EQ(fstatat(AT_FDCWD, g_null, &st, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  const std::string too_long = kClass + std::string("/") + std::string(5000, 'x');
  EXPECT_EQ(Ours(too_long.c_str()), Untouched(too_long.c_str()));
}

TEST_F(PathsTest, ErrnoOfSuccessStays) {
  for (const char* path : {kFile, kDevice, "/dev/null"}) {
    errno = EXDEV;
    const int fd = open(path, O_RDONLY);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(errno, EXDEV) << path;
    close(fd);
  }
}

TEST_F(PathsTest, TheModeOfANewFileArrives) {
  const std::string path = instance_ + "/new";
  const mode_t mask = umask(0);
  const int fd = open(path.c_str(), O_CREAT | O_RDWR, 0640);
  const int other = openat(AT_FDCWD, (path + "2").c_str(), O_CREAT | O_RDWR, 0604);
  umask(mask);
  struct stat st = {};
  ASSERT_EQ(fstat(fd, &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0640u);
  ASSERT_EQ(fstat(other, &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0604u);
  close(fd);
  close(other);
}

TEST_F(PathsTest, PathsBelowTheRootsFdAreAbsolute) {
  const int root = open("/", O_RDONLY | O_DIRECTORY), other = open("/proc", O_RDONLY | O_DIRECTORY);
  EXPECT_TRUE(Opens(openat(root, kFile + 1, O_RDONLY)));
  EXPECT_EQ(openat(other, kFile + 1, O_RDONLY), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(openat(-1, kFile + 1, O_RDONLY), -1);
  EXPECT_EQ(errno, EBADF);
  // Relative to the working directory they are not.
  char before[PATH_MAX];
  ASSERT_NE(getcwd(before, sizeof(before)), nullptr);
  ASSERT_EQ(chdir("/"), 0);
  EXPECT_EQ(Ours(kFile + 1), Untouched(kFile + 1));
  ASSERT_EQ(chdir(before), 0);
  close(root);
  close(other);
}

TEST_F(PathsTest, WithoutAnInstanceLibcAnswers) {
  setenv("VERBENA_INSTANCE", "/nonexistent", 1);
  EXPECT_EQ(Ours(kFile), Untouched(kFile));
  EXPECT_EQ(Ours(kDevice), Untouched(kDevice));
}

TEST_F(PathsTest, ADirectoryThatOthersMayWriteToIsNoInstance) {
  ASSERT_EQ(chmod(instance_.c_str(), 0777), 0);
  EXPECT_EQ(Ours(kFile), Untouched(kFile));
  ASSERT_EQ(chmod(instance_.c_str(), 0755), 0);
  EXPECT_EQ(Ours(kFile), 0);
}

TEST_F(PathsTest, NothingIsAllocated) {
  struct stat st;
  const auto before = mallinfo2().uordblks;
  for (int i = 0; i < 100; ++i) {
    stat(kFile, &st);
    stat(kDevice, &st);
    access("/nonexistent", R_OK);
  }
  EXPECT_EQ(mallinfo2().uordblks, before);
}

volatile int g_answers = 0;

TEST_F(PathsTest, ASignalHandlerAndAForkedChildMayAsk) {
  stack_t stack = {};
  stack.ss_size = static_cast<size_t>(sysconf(_SC_MINSIGSTKSZ)) + 4096;
  stack.ss_sp = malloc(stack.ss_size);
  ASSERT_EQ(sigaltstack(&stack, nullptr), 0);
  struct sigaction action = {};
  action.sa_handler = [](int) { g_answers = g_answers + (access(kFile, R_OK) == 0); };
  action.sa_flags = SA_ONSTACK;
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  raise(SIGUSR1);
  EXPECT_EQ(g_answers, 1);
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGUSR1);
    _exit(g_answers == 2 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  signal(SIGUSR1, SIG_DFL);
  stack.ss_flags = SS_DISABLE;
  sigaltstack(&stack, nullptr);
  free(stack.ss_sp);
}

TEST_F(PathsTest, AChildWithAnEmptyEnvironmentRunsWithoutIt) {
  const pid_t child = fork();
  if (child == 0) {
    const char* argv[] = {"/usr/bin/env", nullptr};
    const char* nothing[] = {nullptr};
    execve(argv[0], const_cast<char**>(argv), const_cast<char**>(nothing));
    _exit(127);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// Every function that is exported is one of libc's, and the library's is found first.
TEST(Paths, StandInFrontOfLibc) {
  for (const char* name : {"open", "stat", "__xstat", "realpath", "opendir", "statx"}) {
    Dl_info info = {};
    ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, name), &info), 0);
    EXPECT_NE(strstr(info.dli_fname, "libverbena-paths.so"), nullptr) << name << info.dli_fname;
  }
}

}  // namespace
}  // namespace verbena::paths

int main(int argc, char** argv) {
  if (getenv("LD_PRELOAD") == nullptr) {
    char path[PATH_MAX];
    if (realpath(verbena::paths::kLibrary, path) == nullptr) return 1;
    setenv("LD_PRELOAD", path, 1);
    execv("/proc/self/exe", argv);
    return 1;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
