# Three weirs on Nomad 1.4 or newer, with Docker, that find each other in Consul.
#
#   nomad var put nomad/jobs/weir peer_secret="$(openssl rand -hex 32)"
#   nomad job run -var image=registry.example.com/weir:1.0.0 weir.nomad.hcl

variable "image" {
  description = "Where Nomad's clients find the image. Not with the tag latest: Nomad would ask the registry at each start."
  type        = string
}

job "weir" {
  type = "service"

  # A rolling deploy: one node at a time, and the next only after both checks of its replacement have passed for a while,
  # in which all nodes see the new list (they ask every 10 seconds, and Consul answers at once). If a version doesn't get
  # well, the last one comes back.
  update {
    max_parallel      = 1
    health_check      = "checks"
    min_healthy_time  = "20s"
    healthy_deadline  = "2m"
    progress_deadline = "10m"
    auto_revert       = true
  }

  # The same when Nomad's clients are drained.
  migrate {
    max_parallel     = 1
    min_healthy_time = "20s"
  }

  group "weir" {
    count = 3

    # A client that fails should take one node with it. A wish, not a condition: a single client may run all three.
    spread {
      attribute = "${node.unique.id}"
    }

    network {
      # Any free port: a node's port is in its SRV record, so that they need not be the same.
      port "http" {}
    }

    # What nodes find each other by. It asks /healthz, not /readyz: a node is ready only after it has found itself in this
    # list, and one that isn't ready must not be taken off the others' lists.
    service {
      name = "weir"
      port = "http"

      check {
        type     = "http"
        path     = "/healthz"
        interval = "5s"
        timeout  = "2s"
      }
    }

    # What callers should use: nodes that are starting or leaving answer /readyz with 503, and drop out.
    service {
      name = "weir-client"
      port = "http"

      check {
        type     = "http"
        path     = "/readyz"
        interval = "2s"
        timeout  = "2s"
      }
    }

    task "weir" {
      driver = "docker"

      config {
        image = var.image

        # The host's network: no port mapping between the nodes, and Consul's DNS is at 127.0.0.1, where it listens unless
        # told otherwise. With the bridge instead (ports = ["http"] here, to = 8080 above, no WEIR_LISTEN), let Consul serve
        # DNS at an address that containers reach and set WEIR_DNS_SERVER to it.
        network_mode = "host"

        # weir writes nothing and needs no privileges.
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }

      env {
        WEIR_LISTEN = ":${NOMAD_PORT_http}"

        # The SRV records of the service above. _weir._tcp.service.consul asks for the same.
        WEIR_PEERS_SRV  = "weir.service.consul"
        WEIR_DNS_SERVER = "127.0.0.1:8600"

        # Which of the records is this node: an address and port that Nomad gave it and told Consul. The records themselves
        # say it differently (c0a80105.addr.dc1.consul and a port, or client-1.node.dc1.consul), so weir looks up whose
        # address this is; the record's spelling is then the node's name. On the host's network a node could tell by itself,
        # behind a port mapping it couldn't.
        WEIR_ADVERTISE = "${NOMAD_ADDR_http}"

        # After SIGTERM: /readyz says no for 10 seconds, while Consul and the callers notice and checks are still answered;
        # then requests may take 8 to finish.
        WEIR_DRAIN_DELAY      = "10s"
        WEIR_SHUTDOWN_TIMEOUT = "8s"

        # Leaves room below the memory of the task for what Go doesn't count.
        GOMEMLIMIT = "460MiB"
      }

      # The secret that nodes know each other by. To replace it without an outage, put "old,new", restart the nodes one by
      # one (nomad job restart), then "new,old", restart, then "new". Left to itself a change of the variable would restart
      # all of them at once, and every count would be lost: hence noop.
      template {
        data        = <<-EOT
          {{ with nomadVar "nomad/jobs/weir" }}WEIR_PEER_SECRET={{ .peer_secret }}{{ end }}
        EOT
        destination = "${NOMAD_SECRETS_DIR}/weir.env"
        env         = true
        change_mode = "noop"
      }

      # The sum of the two times above, and a little; then Nomad kills. (A client allows 30s at most unless its
      # max_kill_timeout says more.)
      kill_timeout = "20s"

      resources {
        cpu    = 500 # MHz
        memory = 512 # MB; the default of 1,000,000 limits takes some 240
      }
    }
  }
}
