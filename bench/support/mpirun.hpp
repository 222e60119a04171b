// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Programs that are started a second time under mpirun, because they compare with MPI. Without MPI at build time
// `mpi_available` is false.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(BELAY_BENCH_MPI)
#include <mpi.h>
#endif

namespace bench {

/// How many processes mpirun started; 0 where it did not start this one.
[[nodiscard]] inline int mpirun_processes() noexcept {
  const char* const text = std::getenv("OMPI_COMM_WORLD_SIZE");
  return text == nullptr ? 0 : std::atoi(text);
}
/// Whether this process is one that mpirun started.
[[nodiscard]] inline bool under_mpirun() noexcept { return mpirun_processes() > 0; }

#if defined(BELAY_BENCH_MPI)
inline constexpr bool mpi_available = true;

/// MPI_Init to MPI_Finalize, where mpirun started this process.
class mpi_session {
 public:
  explicit mpi_session(bool wanted) : on_(wanted) {
    if (on_) MPI_Init(nullptr, nullptr);
  }
  mpi_session(const mpi_session&) = delete;
  mpi_session& operator=(const mpi_session&) = delete;
  ~mpi_session() {
    if (on_) MPI_Finalize();
  }

 private:
  bool on_;
};

[[nodiscard]] inline std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}
#else
inline constexpr bool mpi_available = false;

class mpi_session {
 public:
  explicit mpi_session(bool) {}
};

[[nodiscard]] inline std::string mpi_version() { return {}; }
#endif

enum class cores { one_each, fewer_than_ranks };

/// Starts this very program under mpirun; returns only if that fails.
inline void become_mpirun(int ranks, cores there_are, char** argv) {
  std::vector<std::string> words{"mpirun", "-np", std::to_string(ranks)};
  if (there_are == cores::fewer_than_ranks)
    words.insert(words.end(), {"--oversubscribe", "--bind-to", "none"});
  else
    words.insert(words.end(), {"--bind-to", "core"});
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  char self[4096];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self - 1);
  words.emplace_back(length > 0 ? std::string(self, static_cast<std::size_t>(length)) : std::string(argv[0]));
  for (char** word = argv + 1; *word != nullptr; ++word) words.emplace_back(*word);
  std::string line = "#";
  std::vector<char*> pointers;
  for (std::string& word : words) {
    line += ' ' + word;
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  ::execvp(pointers[0], pointers.data());
  std::fprintf(stderr, "mpirun: %s (Debian: apt-get install openmpi-bin libopenmpi-dev)\n", std::strerror(errno));
}

}  // namespace bench
