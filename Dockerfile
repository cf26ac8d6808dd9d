# docker build -t weir --build-arg VERSION=v1.0.0 .
# Any builder will do: nothing here needs BuildKit.
ARG VERSION=dev

FROM golang:1.26 AS build
WORKDIR /src
# The modules come first: this layer is reused until go.mod or go.sum changes.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /weir .

FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="A distributed rate limiter over HTTP and JSON" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /weir /weir
# A number, since there is no /etc/passwd; Kubernetes' runAsNonRoot asks for one as well.
USER 65532:65532
EXPOSE 8080
# No shell and no curl in here: the binary asks its own /healthz.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 CMD ["/weir", "-health"]
ENTRYPOINT ["/weir"]
