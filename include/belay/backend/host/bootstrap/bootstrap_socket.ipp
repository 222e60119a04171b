// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Opening, accepting on and removing the socket by which ranks join, and one sweep of what dead processes left.
#pragma once

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_file.hpp"
#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
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

}  // namespace host
}  // namespace belay::inline BELAY_ABI
