// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Opening, accepting on and removing the socket by which ranks join.
#pragma once

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/backend/host/bootstrap/stale_files.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hexadecimal.hpp"

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

}  // namespace host
}  // namespace belay::inline BELAY_ABI
