// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Opening, accepting on and removing the socket by which ranks join, and one sweep of what dead processes left;
// writing, finding and reading the file that names a job's socket.
#pragma once

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string_view>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/process.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL void fill_random(void* bytes, std::size_t count, where at) {
  auto* next = static_cast<unsigned char*>(bytes);
  while (count > 0) {
    const ssize_t got = ::getrandom(next, count, 0);
    if (got < 0 && errno != EINTR) throw file_error("getrandom", 0, std::strerror(errno), at);
    if (got > 0) next += got, count -= static_cast<std::size_t>(got);
  }
}

BELAY_DECL std::string wrong_socket_path(const std::string& path) {
  if (!path.empty() && path.size() < sizeof(sockaddr_un::sun_path)) return {};
  return "a socket's path has 1 to 107 characters, this has " + std::to_string(path.size());
}

BELAY_DECL sockaddr_un socket_address(const std::string& path) noexcept {
  sockaddr_un out = {};
  out.sun_family = AF_UNIX;
  std::memcpy(out.sun_path, path.c_str(), path.size() + 1);
  return out;
}

BELAY_DECL peer peer_of(int socket) noexcept {
  ucred found = {};
  socklen_t size = sizeof found;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0) return {};
  return {found.uid, found.pid};
}

BELAY_DECL bootstrap_socket bootstrap_socket::open(where at) {
  const std::string base = base_directory();
  remove_stale_files(base);
  try {
    return open_in(base, at);
  } catch (const file_error& problem) {
    throw with_base_set_aside(problem);
  }
}

BELAY_DECL bootstrap_socket bootstrap_socket::open_in(const std::string& base, where at) {
  bootstrap_socket out;
  out.owner_ = ::getpid();
  fill_random(&out.secret_, sizeof out.secret_, at);
  const std::string begin = base + "/" + user_prefix() + "-" + file_owner::this_process(at).text() + "-";
  std::string directory;
  do {
    std::uint64_t random = 0;
    fill_random(&random, sizeof random, at);
    directory = begin;
    append_hex(directory, random, 16);
    const std::string path = directory + "/" + file_name;
    const std::string wrong = wrong_socket_path(path);
    if (!wrong.empty()) throw file_error(path, 0, "too long: " + wrong, at);
  } while (!private_directory::create(directory, at));
  out.directory_ = directory;
  out.listen(at);
  return out;
}

BELAY_DECL void bootstrap_socket::close() noexcept {
  listener_.reset();
  if (directory_.empty() || ::getpid() != owner_) return;
  ::unlink(path().c_str());
  ::rmdir(directory_.c_str());
  directory_.clear();
}

BELAY_DECL accepted bootstrap_socket::accept() const noexcept {
  accepted out;
  unique_fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    out.what = is_shortage(errno) ? accept_status::no_descriptor : accept_status::nobody;
    out.error = errno;
    return out;
  }
  out.from = peer_of(socket.get());
  out.what = out.from.user == ::geteuid() ? accept_status::ours : accept_status::stranger;
  if (out.what == accept_status::ours) out.socket = connection(std::move(socket));
  return out;
}

BELAY_DECL void bootstrap_socket::listen(where at) {
  const std::string text = path();
  const auto refuse = [&](const char* call) {
    throw file_error(text, 0, std::string(call) + ": " + error_text(errno), at);
  };
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) refuse("socket");
  const sockaddr_un name = socket_address(text);
  // Before bind: the file is made with this mode, less what the umask forbids.
  if (::fchmod(listener_.get(), S_IRUSR | S_IWUSR) != 0) refuse("fchmod");
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) refuse("bind");
  if (::listen(listener_.get(), SOMAXCONN) != 0) refuse("listen");
}

BELAY_DECL int remove_stale_files(const std::string& base) noexcept try {
  int removed = 0;
  const auto attempt = [&](const auto& remove) {
    try {
      removed += remove() ? 1 : 0;
    } catch (const file_error&) {  // not private, or not ours
    }
  };
  const unique_fd folder(::open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string sockets = user_prefix() + "-";
  for (const std::string& name : folder ? names_in(folder.get(), sockets) : std::vector<std::string>{}) {
    std::string_view rest = std::string_view(name).substr(sockets.size());
    const auto owner = file_owner::read(rest);
    if (!owner || rest.size() != 17 || rest.front() != '-' || !owner->gone()) continue;
    attempt([&] {
      const auto found = private_directory::find(base + "/" + name, {});
      if (!found) return false;
      found->remove(bootstrap_socket::file_name);
      return found->remove_if_empty();  // one that holds anything else stays
    });
  }
  attempt([&] {
    const auto files = private_directory::find(base + "/" + user_prefix(), {});
    if (!files) return false;
    for (const std::string& name : files->names(bootstrap_file::prefix)) {
      attempt([&] {
        const auto found = bootstrap_file::read(*files, name, {});
        if (!found || !found->owner.gone()) return false;
        files->remove(name);
        return true;
      });
    }
    for (const std::string& name : files->names(bootstrap_file::unfinished)) {
      std::string_view rest = std::string_view(name).substr(std::strlen(bootstrap_file::unfinished));
      const auto owner = file_owner::read(rest);
      if (!owner || !rest.empty() || !owner->gone()) continue;
      files->remove(name);
      ++removed;
    }
    return false;
  });
  return removed;
} catch (const std::exception&) {  // no memory: the next start tries again
  return 0;
}

// Follows from what the launcher tells every rank of a job and no other job; else from the process that started them.
[[nodiscard]] BELAY_DECL std::string bootstrap_file_name(const launcher_environment& job) {
  std::string told = std::string(job.launcher) + "/" + std::to_string(job.size);
  bool any = false;
  for (const char* variable :
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "OMPI_MCA_ess_base_jobid",
        "PMIX_NAMESPACE", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    const char* const value = environment_variable(variable);
    if (value == nullptr || *value == '\0') continue;
    told += std::string("/") + variable + "=" + value;
    any = true;
  }
  if (!any) {
    const auto parent = read_process_status(::getppid());
    told += "/" + std::to_string(::getppid()) + "/" + std::to_string(parent ? parent->start_time : 0);
  }
  std::string name(bootstrap_file::prefix);
  append_hex(name, fnv1a().add_text(told).value(), 16);
  return name;
}

BELAY_DECL bootstrap_file bootstrap_file::write(const launcher_environment& job, const bootstrap_socket& socket,
                                                where at) {
  const std::string name = bootstrap_file_name(job);
  const file_owner owner = file_owner::this_process(at);
  std::string text = "belay 2 " + owner.text() + " " + socket.path() + " ";
  for (const auto byte : socket.secret()) append_hex(text, static_cast<unsigned char>(byte), 2);
  text += '\n';
  try {
    while (true) {
      private_directory folder = private_directory::make(folder_path(), at);
      static_cast<void>(folder.open(name, at));  // throws where the name is anything else's
      if (folder.put(name, unfinished + owner.text(), text, at)) return {::getpid(), name, std::move(folder)};
    }
  } catch (const file_error& problem) {
    throw with_base_set_aside(problem);
  }
}

BELAY_DECL bootstrap_file::content bootstrap_file::find(const launcher_environment& job, time_point until, where at,
                                                        const time_source* clock) {
  const std::string name = bootstrap_file_name(job);
  while (true) {
    try {
      if (const auto folder = private_directory::find(folder_path(), at)) {
        if (auto found = read(*folder, name, at); found && found->owner.runs()) return std::move(*found);
      }
    } catch (const file_error& problem) {
      throw with_base_set_aside(problem);
    }
    if (time_by(clock) >= until) {
      comm_error::details what;
      what.fault = comm_fault::timeout;
      what.culprits = {0};
      what.operation = "from_env";
      what.here = at;
      what.message = "rank 0 of " + job.text() + " wrote no file " + folder_path() + "/" + name +
                     ": was it started, on this host?" + base_set_aside();
      throw comm_error(std::move(what));
    }
    const timespec millisecond{0, 1'000'000};  // the kernel does not announce a file in a directory that is not there
    ::nanosleep(&millisecond, nullptr);
  }
}

BELAY_DECL std::optional<bootstrap_file::content> bootstrap_file::read(const private_directory& folder,
                                                                       const std::string& name, where at) {
  const unique_fd file = folder.open(name, at);
  if (!file) return std::nullopt;
  const auto refuse = [&](const char* why) {
    throw file_error(folder.path_of(name), 0, std::string("is no bootstrap file") + why, at);
  };
  char text[512];
  const ssize_t length = ::read(file.get(), text, sizeof text);
  if (length <= 0 || text[length - 1] != '\n') refuse(": cut off");
  std::string_view rest(text, static_cast<std::size_t>(length) - 1);
  const auto word = [&] {
    const std::size_t end = lesser_of(rest.find(' '), rest.size());
    const std::string_view out = rest.substr(0, end);
    rest.remove_prefix(lesser_of(end + 1, rest.size()));
    return out;
  };
  if (word() != "belay" || word() != "2") refuse(", or one of another version");
  std::string_view owner = word();
  const auto written_by = file_owner::read(owner);
  if (!written_by || !owner.empty()) refuse(": it does not say which process wrote it");
  content out;
  out.owner = *written_by;
  const std::size_t end = lesser_of(rest.rfind(' '), rest.size());  // a path may have spaces
  out.socket_path = std::string(rest.substr(0, end));
  rest.remove_prefix(lesser_of(end + 1, rest.size()));
  if (rest.size() != 2 * out.secret.size()) refuse(": its token has another length");
  for (std::size_t i = 0; i < out.secret.size(); ++i) {
    unsigned value = 0;
    const auto done = std::from_chars(rest.data() + 2 * i, rest.data() + 2 * i + 2, value, 16);
    if (done.ptr != rest.data() + 2 * i + 2) refuse(": its token is not hexadecimal");
    out.secret[i] = static_cast<token::value_type>(value);
  }
  return out;
}

BELAY_DECL bootstrap_file::~bootstrap_file() {
  if (name_.empty() || ::getpid() != owner_) return;
  folder_.remove(name_);
  folder_.remove_if_empty();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
